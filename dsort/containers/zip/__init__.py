"""The zip container: read from the central directory, entries moved as they are stored.

It reads windows on a shard's bytes, the end first, into a ``MemberTable``, and makes local headers,
entries of a central directory, and the end of a shard."""

__all__: list[str] = []
