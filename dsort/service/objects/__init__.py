"""Objects of buckets, read over HTTP: as they are, or transformed.

In: paths and ranges of requests. Out: streams of bytes. This is the one place of the service that
payload passes through. To transform a shard is a job of one shard, in a process of its own.
"""
