"""Croissant: JSON-LD by which catalogues and ``mlcroissant`` describe and read the shards."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar, Final

from dsort.sidecars.base import ResultShards, Sidecar

FILE_NAME: Final = "croissant.json"
_TYPES: Final = {".tar": "application/x-tar", ".jsonl": "application/jsonlines"}
_SETS: Final = ("shards", "members")
_ALIASES: Final = (
    *("citeAs", "column", "equivalentProperty", "extract", "field", "fileProperty", "fileObject"),
    *("fileSet", "format", "includes", "isLiveDataset", "jsonPath", "key", "md5", "parentField"),
    *("path", "recordSet", "references", "regex", "repeated", "replace", "samplingRate"),
    *("separator", "source", "subField", "transform"),
)
_CONTEXT: Final = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "dct": "http://purl.org/dc/terms/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "sc": "https://schema.org/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    **{name: f"cr:{name}" for name in _ALIASES},
}


class Croissant(Sidecar):
    """``croissant.json`` at the top of the bucket. Each of its records is a member of a tar, or a
    line, because a sidecar does not know which members a sample has."""

    kind: ClassVar[str] = "croissant"
    extensions: ClassVar[tuple[str, ...]] = tuple(_TYPES)
    lists_shards: ClassVar[bool] = True
    needs_sha256: ClassVar[bool] = True

    def result_files(self, shards: Sequence[str]) -> Sequence[str]:
        """At the top of the bucket."""
        return [FILE_NAME]

    def of_result(self, name: str, result: ResultShards) -> bytes:
        """JSON, the same for the same shards."""
        names = [*result.records]
        sizes = zip(names, result.file_bytes, result.sha256, strict=True)
        files = [_file(shard, size_bytes, sha256) for shard, size_bytes, sha256 in sizes]
        is_lines = bool(names) and names[0].endswith(".jsonl")
        content = {
            "@context": _CONTEXT,
            "@type": "sc:Dataset",
            "name": "dataset",
            "description": f"{sum(result.records.values())} records in {len(names)} shards",
            "conformsTo": "http://mlcommons.org/croissant/1.0",
            "distribution": [*files, _files(names, is_lines=is_lines)],
            "recordSet": [_record_set(is_lines=is_lines)],
        }
        return (json.dumps(content, indent=1) + "\n").encode()


def _file(shard: str, size_bytes: int, sha256: str) -> dict[str, Any]:
    extension = next(each for each in _TYPES if shard.endswith(each))
    return {
        "@type": "cr:FileObject",
        "@id": shard,
        "name": shard,
        "contentUrl": shard,
        "contentSize": f"{size_bytes} B",
        "encodingFormat": _TYPES[extension],
        "sha256": sha256,
    }


def _files(shards: Sequence[str], *, is_lines: bool) -> dict[str, Any]:
    """The files that records are in: all members of all tars, or all shards of lines."""
    return {
        "@type": "cr:FileSet",
        "@id": _SETS[not is_lines],
        "name": _SETS[not is_lines],
        "containedIn": [{"@id": shard} for shard in shards],
        "encodingFormat": _TYPES[".jsonl"] if is_lines else "application/octet-stream",
        "includes": "*.*",  # "*" means directories, too
    }


def _record_set(*, is_lines: bool) -> dict[str, Any]:
    properties = {"line": "lines"} if is_lines else {"name": "fullpath", "content": "content"}
    fields = [
        {
            "@type": "cr:Field",
            "@id": f"records/{name}",
            "name": name,
            "dataType": "sc:Text",
            "source": {
                "fileSet": {"@id": _SETS[not is_lines]},
                "extract": {"fileProperty": file_property},
            },
        }
        for name, file_property in properties.items()
    ]
    return {"@type": "cr:RecordSet", "@id": "records", "name": "records", "field": fields}
