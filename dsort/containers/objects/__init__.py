"""Sequences of objects with known lengths: MessagePack and CBOR.

``headers`` reads the header of one item of either format, ``walk`` finds where objects end and
their fields, ``scan`` makes members from these, ``container`` is the interface to the rest of
dsort.
"""
