"""Codecs: what compresses a whole shard, around whatever container it is.

In goes the stream of an encoded file, out come the bytes of the container, checked, and the other
way round. A shard's name says its codec by its last suffix (``containers.registry.codec_of``).
"""

from __future__ import annotations

__all__: list[str] = []
