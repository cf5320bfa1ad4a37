"""Transforms: the steps that choose and change records between reading and ordering them.

In go the records of one shard, as columns; out come those that a step leaves. A step says what it
needs to see (the index, one small member), and that decides where it runs and what it costs.
"""
