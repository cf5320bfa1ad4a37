"""Loose files as input shards.

From the rules of a spec (``ingest``) and the buckets with the files, this package makes a
``Listing``, which has the record and the member that each file becomes, and a ``FilesBucket``, in
which runs of these members are tars that are not stored anywhere. Code that reads shards reads them
like other shards.
"""

__all__: list[str] = []
