"""Where bytes live: buckets, which know names and bytes, never shards or records.

In go texts and references (:mod:`~dsort.storage.ref`), out come buckets (``open.open_bucket``): a
directory, or one of the stores in the registry, with retries and limits around it. Every error that
leaves is a ``StorageError``. ``network_policy`` and ``guarded_http`` say and keep what may be
reached for a spec from the network.
"""
