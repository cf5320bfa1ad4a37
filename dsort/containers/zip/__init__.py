"""The zip container: read from the central directory, entries moved as they are stored.

``container`` is the interface to the rest of dsort. It reads a shard's bytes, the end first, into a
``MemberTable``; ``layout``, ``directory`` and ``entries`` read and make local headers, central
directories and the ends of shards.
"""
