"""Storage: buckets, which store bytes under names. Shards and records are unknown here.

``open.open_bucket`` makes a bucket from a text or a reference (:mod:`~dsort.storage.ref`): a
directory, or one of the stores in the registry, with retries and limits around it. All errors that
buckets raise are ``StorageError``. ``network_policy`` defines, and ``guarded_http`` enforces, what
may be reached for a spec from the network.
"""
