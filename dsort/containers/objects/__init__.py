"""Sequences of objects with known lengths: MessagePack and CBOR.

``container`` is the interface to the rest of dsort: read it first. ``headers`` reads the header of
one item of either format, ``walk`` finds where objects end and their fields, which become members.
"""
