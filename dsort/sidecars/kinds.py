"""The kinds of sidecars, with their names and the containers that they support."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, Literal

from msgspec import Struct

__all__ = [
    "ENERGON_FILES",
    "FOR_EXTENSIONS",
    "SHARD_KINDS",
    "SidecarKind",
    "SidecarName",
    "common_directory",
    "parse_kinds",
    "sidecar_names",
]

SidecarKind = Literal["wids", "dali", "energon", "lhotse", "lines", "huggingface", "sizes"]

FOR_EXTENSIONS: Final[dict[str, tuple[str, ...]]] = {
    "wids": (".tar",),
    "dali": (".tar", ".tfrecord", ".tfrecords"),
    "energon": (".tar",),
    "lhotse": (".tar",),
    "lines": (".jsonl", ".ndjson", ".txt"),
    "huggingface": (".tar", ".jsonl", ".jsonl.gz", ".jsonl.zst", ".txt", ".parquet", ".arrow"),
}
"""The extensions that readers of a kind can read; kinds that are not listed support all."""

SHARD_KINDS: Final = ("dali", "energon", "lhotse", "lines")
"""The kinds that have a file for each shard."""

ENERGON_FILES: Final = (
    ".nv-meta/.info.json",
    ".nv-meta/dataset.yaml",
    ".nv-meta/index.sqlite",
    ".nv-meta/index.uuid",
    ".nv-meta/split.yaml",
)


class SidecarName(Struct, frozen=True):
    """A sidecar to be written. ``ordinal``: the output shard that it describes; -1: all of them.
    ``moves``: it is in the directory of the shards, if they have one."""

    kind: str
    name: str
    ordinal: int = -1
    moves: bool = False


def parse_kinds(value: object) -> tuple[str, ...]:
    """The kinds in a spec's ``index``, in any form that it may have: a list, a kind, ``none``."""
    items = value if isinstance(value, (list, tuple)) else [value]
    return tuple(each for each in items if isinstance(each, str) and each != "none")


def sidecar_names(kinds: Collection[str], shards: Sequence[str]) -> list[SidecarName]:
    """The sidecars of a result whose output shards are called ``shards``, except for the wids
    index, whose name depends on the job. Those of single shards come first."""
    found = [
        SidecarName(kind, _of_shard(kind, name), ordinal)
        for kind in SHARD_KINDS
        if kind in kinds
        for ordinal, name in enumerate(shards)
    ]
    if "energon" in kinds:
        found += [SidecarName("energon", name) for name in ENERGON_FILES]
    if "huggingface" in kinds:
        found.append(SidecarName("huggingface", "README.md"))
    if "sizes" in kinds:
        found.append(SidecarName("sizes", f"{common_directory(shards)}sizes.json", moves=True))
    return found


def _of_shard(kind: str, name: str) -> str:
    if kind != "dali":
        return f"{name}.idx"
    directory, slash, last = name.rpartition("/")  # as wds2idx does: up to the first dot
    return f"{directory}{slash}{last.partition('.')[0]}.idx"


def common_directory(names: Sequence[str]) -> str:
    """The directory that contains all of ``names``, with a slash at its end; "" if there is none,
    or several."""
    parents = {name.rpartition("/")[0] for name in names}
    parent = parents.pop() if len(parents) == 1 else ""
    return f"{parent}/" if parent else ""
