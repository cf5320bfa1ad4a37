"""Loose files as input shards. A ``Listing`` (``listing``, the first to read) has the record and
the member that each file becomes; in a ``FilesBucket`` (``bucket``), runs of these members are tars
that are not stored anywhere. Code that reads shards reads them like other shards."""

__all__: list[str] = []
