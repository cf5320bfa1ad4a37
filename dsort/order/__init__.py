"""Order: which record comes after which, and in which output shard.

It gets columns: the records of one shard with the content that the job's algorithm reads, or the
index rows of a whole job. It computes sort keys, partitions (ranges of sort keys that fit in a
worker's memory), the order of a partition's rows, the cut into output shards, duplicate keys, and
how evenly a job mixed its records. All of it is pure: no file is opened, and no clock is read.
"""
