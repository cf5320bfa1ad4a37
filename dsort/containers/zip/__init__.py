"""The zip container: reads shards by their central directory, and moves entries as they are stored.

``container`` is the interface to the rest of dsort. The container reads a shard's bytes, the end
first, into a ``MemberTable``; ``layout``, ``directory`` and ``entries`` read and make local
headers, central directories and the ends of shards.
"""
