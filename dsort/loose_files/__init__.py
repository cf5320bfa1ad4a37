"""Loose files as input shards.

What goes in: the rules of a spec (``ingest``) and the buckets where the files are. What comes out:
a ``Listing``, which says what member of which record each file becomes, and a ``FilesBucket``, in
which runs of these members are tars that nobody stores. To whoever reads shards they are shards.
"""

__all__: list[str] = []
