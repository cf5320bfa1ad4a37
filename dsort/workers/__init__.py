"""The plain classes that do a job's work: extractor, orderer, creator and sealer.

Read ``worker`` first, which does any ``tasks``: small frozen values that name shards, partitions
and outputs. Workers return facts; records and indexes stay in scratch, output shards in the bucket.
A task may be done twice, by another worker, with the same result. No module imports a runtime.
"""
