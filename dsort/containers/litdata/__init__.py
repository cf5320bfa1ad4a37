"""LitData, the chunks of Lightning: a table of offsets, and items.

Reads the bytes of a chunk, and the ``index.json`` that describes its items, into a member table
whose rows are whole items. Writes heads of chunks, and an ``index.json``.
"""
