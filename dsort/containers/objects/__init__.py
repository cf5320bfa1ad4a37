"""Sequences of objects with known lengths: MessagePack and CBOR.

``container`` is the interface to the rest of dsort: read it first. ``headers`` reads the header of
one item of either format, ``walk`` finds the ends of objects, and their fields, which become
members.
"""
