"""Loose files as input shards: a ``Listing`` has the record and the member that each file becomes,
and in a ``FilesBucket`` runs of these members are tars that are not stored anywhere. Code that
reads shards reads them like other shards.
"""

__all__: list[str] = []
