"""MDS, the shards of MosaicML Streaming: a table of offsets, the columns, and samples.

Reads the bytes of a shard into a member table whose rows are whole samples, or the columns of each.
Makes samples from other containers' members, heads of shards, and ``index.json``, which readers
need.
"""
