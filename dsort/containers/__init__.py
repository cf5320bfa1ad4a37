"""Container formats: they read the members of a shard from its bytes, and write members as a shard.

``base`` has the contract, and each format is a module or a folder (``tar``). This package does not
depend on buckets or jobs.
"""
