"""Sequences of objects that say how long they are: MessagePack and CBOR.

``headers`` reads the header of one item of either format, ``walk`` finds where objects end and what
fields they have, ``scan`` makes members of that, ``container`` is what the rest of dsort sees.
"""
