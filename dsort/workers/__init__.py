"""The plain classes that do a job's work: extractor, orderer, creator and sealer.

In go tasks: small frozen values that name shards, partitions and output shards. Out come the facts
about what was done; records and indexes stay in scratch, output shards in the bucket. A task may
be done twice, by another worker, with the same result. Nothing here knows where it is hosted.
"""
