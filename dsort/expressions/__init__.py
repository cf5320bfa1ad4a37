"""Expressions: what a spec asks of each record, in CEL, the Common Expression Language.

In go a text and the records of one shard; out comes which of them it is true of. An expression runs
no code of its author, opens nothing and has no loops but over one list: its cost is bounded by its
length and by the largest member that is read. ``parser`` makes a tree of the text, ``names`` finds
out what its names mean and whether its types fit, ``closures`` and ``columns`` compute it.
"""
