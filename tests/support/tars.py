"""Tars that Python's tarfile writes."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Mapping


def tar_of(
    members: Mapping[str, bytes] | Iterable[tuple[str, bytes]], form: int = tarfile.PAX_FORMAT
) -> bytes:
    """A tar of files: their names and payloads."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as archive:
        for name, payload in members.items() if isinstance(members, Mapping) else members:
            info = tarfile.TarInfo(name)
            info.size = len(payload)
            archive.addfile(info, io.BytesIO(payload))
    return file.getvalue()
