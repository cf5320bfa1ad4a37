"""All kinds of sidecars, and the names of the sidecars of a result."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any, ClassVar, Final

from msgspec import Struct

from dsort.registry import Registry
from dsort.sidecars.base import ResultShards, Sidecar

if TYPE_CHECKING:
    from dsort.data.members import MemberTable


_CROISSANT: Final = "croissant.json"
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
    """``croissant.json`` at the top of the bucket. Each record of this file is a member of a tar,
    or a line, because ``of_result`` does not receive the members of samples."""

    kind: ClassVar[str] = "croissant"
    extensions: ClassVar[tuple[str, ...]] = tuple(_TYPES)
    lists_shards: ClassVar[bool] = True
    needs_sha256: ClassVar[bool] = True

    def result_files(self, shards: Sequence[str]) -> Sequence[str]:
        """At the top of the bucket."""
        return [_CROISSANT]

    def of_result(self, name: str, result: ResultShards) -> bytes:
        """JSON, which depends on the shards alone."""
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


class Wids(Sidecar):
    """The job writes this index itself, because the name of the index depends on the job."""

    kind: ClassVar[str] = "wids"
    extensions: ClassVar[tuple[str, ...]] = (".tar",)


class Dali(Sidecar):
    """An index of each shard."""

    kind: ClassVar[str] = "dali"
    extensions: ClassVar[tuple[str, ...]] = (".tar", ".tfrecord", ".tfrecords")
    has_shard_files: ClassVar[bool] = True

    def shard_file(self, shard: str) -> str:
        """The name of the shard up to its first dot, as in ``wds2idx``, with ``.idx``."""
        directory, slash, last = shard.rpartition("/")
        return f"{directory}{slash}{last.partition('.')[0]}.idx"

    def of_shard(self, shard: str, members: MemberTable, file_bytes: int) -> bytes:
        """Lines of text."""
        from dsort.sidecars.shard_index import dali_records, dali_tar

        return dali_tar(shard, members) if shard.endswith(".tar") else dali_records(members)


class Energon(Sidecar):
    """An index of each shard, and the directory ``.nv-meta/``. The job itself writes the database
    in this directory."""

    kind: ClassVar[str] = "energon"
    extensions: ClassVar[tuple[str, ...]] = (".tar",)
    has_shard_files: ClassVar[bool] = True
    lists_shards: ClassVar[bool] = True

    def of_shard(self, shard: str, members: MemberTable, file_bytes: int) -> bytes:
        """Where samples begin."""
        from dsort.sidecars.shard_index import energon_index

        return energon_index(members)

    def result_files(self, shards: Sequence[str]) -> Sequence[str]:
        """The names of the files in ``.nv-meta/``: they are the same for all results."""
        names = (".info.json", "dataset.yaml", DATABASE, "index.uuid", "split.yaml")
        return [f".nv-meta/{name}" for name in names]

    def of_result(self, name: str, result: ResultShards) -> bytes:
        """All but the database."""
        from dsort.sidecars.shard_index import energon_file

        return energon_file(name, result)


class Lhotse(Sidecar):
    """An index of each shard."""

    kind: ClassVar[str] = "lhotse"
    extensions: ClassVar[tuple[str, ...]] = (".tar",)
    has_shard_files: ClassVar[bool] = True

    def of_shard(self, shard: str, members: MemberTable, file_bytes: int) -> bytes:
        """Where pairs of members begin."""
        from dsort.sidecars.shard_index import lhotse_index

        return lhotse_index(shard, members, file_bytes)


class Lines(Sidecar):
    """An index of each shard. Creators make the index from the sizes of records, without a scan."""

    kind: ClassVar[str] = "lines"
    extensions: ClassVar[tuple[str, ...]] = (".jsonl", ".ndjson", ".txt")
    has_shard_files: ClassVar[bool] = True

    def of_shard(self, shard: str, members: MemberTable, file_bytes: int) -> bytes:
        """Where lines begin."""
        from dsort.sidecars.shard_index import lines_index

        return lines_index(members, file_bytes)


class HuggingFace(Sidecar):
    """The card of the data set, which names the shards."""

    kind: ClassVar[str] = "huggingface"
    extensions: ClassVar[tuple[str, ...]] = (
        *(".tar", ".jsonl", ".jsonl.gz", ".jsonl.zst", ".txt", ".parquet", ".arrow"),
    )
    lists_shards: ClassVar[bool] = True

    def result_files(self, shards: Sequence[str]) -> Sequence[str]:
        """At the top of the bucket."""
        return ["README.md"]

    def of_result(self, name: str, result: ResultShards) -> bytes:
        """Markdown with a head of YAML."""
        from dsort.sidecars.shard_index import card

        return card(result)


class Sizes(Sidecar):
    """A file with the number of records of each shard."""

    kind: ClassVar[str] = "sizes"
    lists_shards: ClassVar[bool] = True
    moves: ClassVar[bool] = True

    def result_files(self, shards: Sequence[str]) -> Sequence[str]:
        """Beside the shards."""
        return [f"{common_directory(shards)}sizes.json"]

    def of_result(self, name: str, result: ResultShards) -> bytes:
        """JSON."""
        from dsort.sidecars.shard_index import sizes

        return sizes(result, common_directory([*result.records]))


BUILT_IN: Final = (Wids, Dali, Energon, Lhotse, Lines, HuggingFace, Sizes, Croissant)
DATABASE: Final = "index.sqlite"


def _checked(kind: type[Sidecar]) -> Sidecar:
    if not re.fullmatch(r"[a-z0-9_-]{1,64}", kind.kind):
        raise ValueError(f"{kind.kind!r} is no name of a kind of sidecars")
    if kind.has_shard_files and not kind.extensions:
        raise ValueError(f"{kind.kind} has files of shards, but names no extensions of shards")
    return kind()


SIDECARS: Final[Registry[Sidecar]] = Registry(
    "dsort.sidecars",
    lambda each: (each.kind,),
    [_checked(each) for each in BUILT_IN],
    make=_checked,
    reserved=("lineage", "none", "samples"),  # kinds of files and values of specs that dsort has
)
"""By kind. A package names the classes of its kinds in the entry points ``dsort.sidecars``."""


class SidecarName(Struct, frozen=True):
    """A sidecar to be written. ``ordinal``: the output shard that it describes; -1: all output
    shards. ``moves``: the sidecar is in the directory of the shards, if they have one."""

    kind: str
    name: str
    ordinal: int = -1
    moves: bool = False

    @property
    def is_database(self) -> bool:
        """Whether this is the database of Energon, which is larger than memory."""
        return self.kind == Energon.kind and self.name.endswith(DATABASE)


def parse_kinds(value: object) -> tuple[str, ...]:
    """The kinds in a spec's ``index``, in any form that it may have: a list, a kind or ``none``."""
    items = value if isinstance(value, (list, tuple)) else [value]
    return tuple(each for each in items if isinstance(each, str) and each != "none")


def kinds_of(names: Collection[str]) -> list[Sidecar]:
    """The kinds that are called ``names``, in the order in which their files are listed."""
    # Names are looked up first, because this may load kinds of packages into SIDECARS.
    wanted = {each for each in map(SIDECARS.find, names) if each is not None}
    return [each for each in SIDECARS.values() if each in wanted]


def kinds_alike(names: Collection[str], extension: str) -> list[tuple[str, str]]:
    """Pairs of kinds whose files for a shard would have the same name."""
    of_shards = [each for each in kinds_of(names) if each.has_shard_files]
    return [
        (one.kind, other.kind)
        for one, other in combinations(of_shards, 2)
        if one.shard_file(f"s{extension}") == other.shard_file(f"s{extension}")
    ]


def sidecar_names(kinds: Collection[str], shards: Sequence[str]) -> list[SidecarName]:
    """The sidecars of a result whose output shards are called ``shards``, except for the wids
    index, whose name depends on the job. Sidecars of single shards come first."""
    known = kinds_of(kinds)
    found = [
        SidecarName(each.kind, each.shard_file(name), ordinal)
        for each in known
        if each.has_shard_files
        for ordinal, name in enumerate(shards)
    ]
    for each in known:
        names = each.result_files(shards) if each.lists_shards else ()
        found += [SidecarName(each.kind, name, moves=each.moves) for name in names]
    return found


def common_directory(names: Sequence[str]) -> str:
    """The directory of all ``names``, with a slash at its end; "" if they are in no directory, or
    in several."""
    parents = {name.rpartition("/")[0] for name in names}
    parent = parents.pop() if len(parents) == 1 else ""
    return f"{parent}/" if parent else ""
