"""The plain classes that do a job's work: extractor, orderer, creator and sealer.

They receive tasks, small frozen values that name shards, partitions and outputs, and return facts;
records and indexes stay in scratch, output shards in the bucket. A task may be done twice, by
another worker, with the same result. Nothing here depends on the runtime that hosts it.
"""
