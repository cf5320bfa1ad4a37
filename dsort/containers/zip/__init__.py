"""The zip container: read from the central directory, entries moved as they are stored.

In: windows on a shard's bytes, the end first. Out: a ``MemberTable``, local headers, entries of a
central directory, and what ends a shard."""

__all__: list[str] = []
