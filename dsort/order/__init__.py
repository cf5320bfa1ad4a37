"""Order: which record comes after which, and in which output shard. All of it is pure.

From columns (the records of one shard, or the index rows of a job) it computes sort keys,
partitions (ranges of sort keys that fit in a worker's memory), the order of a partition, the cut
into output shards, duplicate keys, and how evenly a job mixed its records.
"""
