"""MDS, the shards of MosaicML Streaming: a table of offsets, the columns, and samples.

In: the bytes of a shard. Out: a member table whose rows are whole samples, or the columns of each;
samples of other containers' members; heads of shards, and ``index.json``, which readers need.
"""
