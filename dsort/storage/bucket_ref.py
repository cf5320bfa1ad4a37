"""Which bucket, and how it is reached: a value that travels in specs and to workers. No secrets."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BucketRef"]

_PLAIN = ("", "file")


@dataclass(frozen=True, slots=True)
class BucketRef:
    """A bucket, by where it is. Made by ``dsort.spec.buckets.parse_bucket``, which checks it.

    ``scheme`` is one of

    - ``""``: a directory under the data root, ``path`` relative to it
    - ``file``: ``path`` is absolute
    - ``s3``, ``gs``, ``az``, ``ais``: ``path`` is ``bucket`` or ``bucket/prefix``
    - ``http``, ``https``: ``path`` is ``host[:port]`` or ``host[:port]/prefix``; read-only

    Paths are ``/``-separated, without ``..`` and empty parts, and decoded: ``%20`` of a URI is a
    space here. ``endpoint_url``, ``region`` and ``profile`` ("" where they are not given) say how
    an object store is reached; credentials never are in here.
    """

    scheme: str
    path: str
    endpoint_url: str = ""
    region: str = ""
    profile: str = ""

    @property
    def uri(self) -> str:
        """The one canonical text of this bucket: ``images``, ``file:///data/images`` or
        ``s3://bucket/prefix``.

        Of a URI's characters only those are encoded that would mean something else (``% # ?``).
        """
        if self.scheme == "":
            return self.path
        encoded = self.path.replace("%", "%25").replace("#", "%23").replace("?", "%3F")
        return f"{self.scheme}://{encoded}"

    @property
    def is_plain(self) -> bool:
        """Whether the text alone says all: no endpoint, region or profile goes with it."""
        return not (self.endpoint_url or self.region or self.profile)

    @property
    def is_directory(self) -> bool:
        """Whether it is a directory of a file system."""
        return self.scheme in _PLAIN

    def __str__(self) -> str:
        return self.uri
