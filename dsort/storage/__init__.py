"""Storage: buckets, which store bytes under names. Shards and records are unknown here.

``open.open_bucket`` makes a bucket from a text or a reference: a directory, or one of the stores in
the registry, with retries and limits. Buckets raise ``StorageError``. ``network_policy`` defines,
and ``guarded_http`` enforces, which hosts may be reached for a spec from the network.
"""
