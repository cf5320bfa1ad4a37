"""Storage: buckets, which store bytes under names. Shards and records are unknown here.

Read ``bucket`` first: the contract. ``open.open_bucket`` opens the bucket that a text or a ``ref``
names: a directory, or a bucket in a store of the ``registry``, with retries and limits. All errors
of buckets are ``StorageError``. ``network_policy`` limits what specs from the network may reach.
"""
