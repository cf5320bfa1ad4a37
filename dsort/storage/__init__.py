"""Where bytes live: the :class:`~dsort.storage.bucket.Bucket` seam and its implementations.

``addresses.open_bucket`` turns what a user wrote into a bucket; nothing here knows of shards or
records, and every error that leaves this package is a ``StorageError`` (see ``os_errors``).
"""
