"""Surveys: what has to be known before records are extracted, and takes a pass over the inputs to
find. Each is a module with ``readings`` and ``find``; ``all_surveys`` has their order.
"""
