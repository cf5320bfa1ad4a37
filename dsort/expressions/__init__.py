"""Expressions: conditions on records in a spec, written in CEL, the Common Expression Language.

An expression runs no code of its author, opens no files and has no loops except over one list: the
length of its text and the largest member that is read bound its cost. ``parser`` makes a tree of
the text, ``names`` resolves its names and checks types, ``closures`` compiles it, ``reading``
evaluates it.
"""
