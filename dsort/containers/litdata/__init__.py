"""LitData, the chunks of Lightning: a table of offsets, and items.

In: the bytes of a chunk, and the ``index.json`` that says what its items are. Out: a member table
whose rows are whole items, heads of chunks, and an ``index.json``.
"""
