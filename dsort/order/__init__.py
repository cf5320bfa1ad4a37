"""Order: which record comes after which, and in which output shard. All of it is pure.

Read ``base`` first (an algorithm computes sort keys), then ``sort`` (partitions, which are ranges
of sort keys, and their order) and ``cut`` (where output shards end). ``equal_keys`` finds
duplicates and joins; ``mixing`` measures how evenly a job mixed its records.
"""
