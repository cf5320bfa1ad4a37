"""Expressions: conditions on records in a spec, written in CEL, the Common Expression Language.

An expression runs no code of its author, opens no files and loops over one list at most: the length
of its text and the largest member that is read bound its cost. ``parser`` makes a tree, ``names``
resolves its names and checks types, ``closures`` compiles it, ``reading`` evaluates it.
"""
