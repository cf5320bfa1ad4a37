"""Manifests as bytes."""

from __future__ import annotations

import io
from typing import Any

from tests.support.internals import write_manifest

__all__ = ["manifest_bytes"]


def manifest_bytes(**fields: Any) -> bytes:
    """The manifest with these fields (see ``write_manifest``)."""
    file = io.BytesIO()
    write_manifest(file, **fields)
    return file.getvalue()
