"""Manifests as bytes."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.internals import Making, Manifest, write_manifest


@dataclass(frozen=True)
class _Spec:
    """An unchecked spec."""

    fields: Mapping[str, Any]

    def canonical(self) -> Mapping[str, Any]:
        return self.fields


def manifest_bytes(
    *, spec: Mapping[str, Any], making: Mapping[str, Any] | None = None, **fields: Any
) -> bytes:
    """The manifest with these ``fields`` (see ``Manifest``) and these fields of ``Making``."""
    file = io.BytesIO()
    made = Making(**{"move": {"way": "map", "workers": 1}, "phase_seconds": {}, **(making or {})})
    manifest = Manifest(created="2026-01-01T00:00:00+00:00", spec=_Spec(spec), **fields)
    write_manifest(file, manifest, made)
    return file.getvalue()
