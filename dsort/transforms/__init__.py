"""Transforms: the steps that choose and change records between reading and ordering them.

Read ``base`` first: the contract. A step receives the records of one shard, as columns, and returns
those that stay. Each step declares what it reads (the index, one small member), which decides where
it runs and what it costs. ``steps`` lists all steps.
"""
