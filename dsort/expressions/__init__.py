"""Expressions: conditions on records in a spec, written in CEL, the Common Expression Language.

An expression runs no code of its author, opens no files, and has loops over one list only. So its
cost has a bound: its length, and the largest member that it reads. ``parser`` makes a tree of the
text, ``names`` resolves its names and checks its types, ``expression`` and ``closures`` compute it.
"""
