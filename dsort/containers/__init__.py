"""Container formats: they read the members of a shard from its bytes, and write members as a shard.

A container reads the bytes of one shard, in windows or in one piece, and returns a ``MemberTable``,
whose rows are byte ranges of that shard. To write a shard, it makes header bytes and the end of the
shard. ``base`` has the contract, each format is a module or a folder (``tar``), ``inspect``
describes one shard. This package does not depend on buckets or jobs.
"""
