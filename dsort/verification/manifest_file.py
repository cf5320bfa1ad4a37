"""Reading a manifest back, and what it says of itself.

A manifest is data from outside: somebody may have edited it, or given another file by mistake.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from dsort.errors import InputError, SpecError
from dsort.job.manifest import MANIFEST_VERSION, ManifestInput, ManifestOutput
from dsort.spec.load import parse_spec
from dsort.spec.model import JobSpec
from dsort.verification.findings import Findings

__all__ = ["StoredManifest", "check_totals", "parse_manifest"]

_Row = TypeVar("_Row", ManifestInput, ManifestOutput)
_TYPES: Mapping[str, type] = {"int": int, "str": str}


@dataclass(frozen=True, slots=True)
class StoredManifest:
    """What a manifest says, checked for type."""

    job_id: str
    spec: JobSpec
    inputs: tuple[ManifestInput, ...]
    outputs: tuple[ManifestOutput, ...]
    totals: Mapping[str, Any]
    index: str | None


def parse_manifest(data: bytes) -> StoredManifest:
    """The manifest in ``data``; ``InputError`` if it is none, or one of another version."""
    try:
        content = json.loads(data.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError):
        raise _no_manifest("it is not JSON") from None
    if not isinstance(content, dict) or "manifest" not in content:
        raise _no_manifest("it has no field manifest")
    version = content["manifest"]
    if version != MANIFEST_VERSION:
        raise InputError(
            f"this is a manifest of version {version}, and this dsort reads {MANIFEST_VERSION}",
            hint="use the dsort that made it, or a newer one",
        )
    try:
        spec = parse_spec(_field(content, "spec", dict)).spec
    except SpecError as error:
        raise _no_manifest(f"its spec is none: {error}") from None
    index = content.get("index")
    return StoredManifest(
        job_id=_field(content, "job_id", str),
        spec=spec,
        inputs=_rows(content, "inputs", ManifestInput),
        outputs=_rows(content, "outputs", ManifestOutput),
        totals=_field(content, "totals", dict),
        index=None if index is None else _field(content, "index", str),
    )


def check_totals(manifest: StoredManifest, findings: Findings) -> None:
    """The totals are the sums of what is listed."""
    outputs = manifest.outputs
    sums = {
        "input_shards": len(manifest.inputs),
        "output_shards": len(outputs),
        "records": sum(shard.records for shard in outputs),
        "members": sum(shard.members for shard in outputs),
        "payload_bytes": sum(shard.payload_bytes for shard in outputs),
        "file_bytes": sum(shard.file_bytes for shard in outputs),
    }
    for name, value in sums.items():
        said = manifest.totals.get(name)
        if said != value:
            text = f"the manifest's totals say {said} {name}, its shards add up to {value:,}"
            findings.problem("manifest", "", "", text)


def _rows(content: Mapping[str, Any], name: str, kind: type[_Row]) -> tuple[_Row, ...]:
    rows: Sequence[Any] = _field(content, name, list)
    made = []
    for position, row in enumerate(rows):
        where = f"{name}[{position}]"
        if not isinstance(row, dict):
            raise _no_manifest(f"{where} is no object")
        values = {
            each.name: _field(row, each.name, _TYPES[str(each.type)], where)
            for each in fields(kind)
        }
        made.append(kind(**values))
    return tuple(made)


def _field(content: Mapping[str, Any], name: str, kind: type, where: str = "") -> Any:
    value = content.get(name)
    if type(value) is not kind:
        path = f"{where}.{name}" if where else name
        raise _no_manifest(f"{path} is missing or of another type")
    return value


def _no_manifest(reason: str) -> InputError:
    return InputError(
        f"this is no manifest of a dsort job: {reason}",
        hint="give the id of a finished job, or the path of its manifest.json",
    )
