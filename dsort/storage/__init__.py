"""Storage: buckets, which store bytes under names. Shards and records are unknown here.

Read ``bucket`` first: the contract. ``open.open_bucket`` makes a bucket from a text or a reference
(``ref``): a directory, or a store of the ``registry``, with retries and limits around it. All
errors of buckets are ``StorageError``. ``network_policy`` bounds specs from the network.
"""
