"""Container formats: the bytes of a shard to its members, and members back to a shard.

In: the bytes of one shard, in windows or in one piece. Out: a ``MemberTable``, whose rows are byte
ranges of that shard; for a writer, header bytes and what ends a shard. ``base`` has the contract,
each format is a module or a folder (``tar``), ``inspect`` describes one shard. This room knows no
buckets and no jobs.
"""
