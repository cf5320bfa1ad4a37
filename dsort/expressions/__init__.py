"""Expressions: conditions on records in a spec, written in CEL, the Common Expression Language.

An expression is evaluated for the records of one shard. It runs no code of its author, opens no
files or connections and has no loops except over one list: its cost is bounded by its length and by
the largest member that is read. ``parser`` makes a tree of the text, ``names`` resolves its names
and checks its types, ``expression`` and ``closures`` compute it.
"""
