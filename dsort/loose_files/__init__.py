"""Loose files as input shards. A ``Listing`` (``listing``, the first to read) has, for each file,
its record and its member. In a ``FilesBucket`` (``bucket``), runs of these members are tars that
are stored nowhere. Code that reads shards reads these tars like other shards."""
