"""Surveys find what has to be known before records are extracted, if that takes a pass over the
inputs. Each is a module with ``readings`` and ``find``; ``all_surveys`` has their order.
"""
