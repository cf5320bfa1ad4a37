"""Zips for tests, written by Python's ``zipfile`` as other writers do."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

Record = tuple[str, bytes]


class StreamOnly(io.BytesIO):
    """A file that can only be appended to. So sizes follow the data, in data descriptors, as in
    zips of AIStore, of Java and from pipes."""

    def seekable(self) -> bool:
        return False

    def seek(self, offset: int, whence: int = 0) -> int:
        raise io.UnsupportedOperation("seek")

    def tell(self) -> int:
        raise io.UnsupportedOperation("tell")


def zip_of(
    members: Iterable[Record | tuple[zipfile.ZipInfo, bytes]],
    *,
    comment: bytes = b"",
    streamed: bool = False,
    deflated: bool = False,
) -> bytes:
    """A zip of ``members`` (name or ``ZipInfo``, payload)."""
    file = StreamOnly() if streamed else io.BytesIO()
    method = zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, payload in members:
            info = name
            if isinstance(name, str):
                info = zipfile.ZipInfo(name)
                info.compress_type = method
            archive.writestr(info, payload)
        archive.comment = comment
    return file.getvalue()


def read_zips(paths: Sequence[Path]) -> list[Record]:
    """All members of zips, by a reader that checks every CRC-32."""
    found: list[Record] = []
    for path in paths:
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None
            found += [(each.filename, archive.read(each)) for each in archive.infolist()]
    return found
