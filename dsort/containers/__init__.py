"""Container formats: they read the members of a shard from its bytes, and write members as a shard.

Read ``base`` first: it has the contract. ``registry`` finds the format of a name, and each format
is a module or a folder (``tar``). This package does not depend on buckets or jobs.
"""
