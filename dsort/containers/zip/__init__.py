"""The zip container: read from the central directory, entries moved as they are stored.

``container`` is the interface to the rest of dsort. It reads windows on a shard's bytes, the end
first, into a ``MemberTable``; ``layout``, ``directory`` and ``entries`` read and make local
headers, entries of a central directory, and the end of a shard.
"""

__all__: list[str] = []
