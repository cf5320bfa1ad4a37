"""Which container a shard is, by the end of its name. One table: to add a container, add a line.

Loads no container before one is asked for, so that a spec is read without numpy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dsort.containers.base import Container
from dsort.naming.names import add_archive_extension

__all__ = [
    "DEFAULT_EXTENSION",
    "SUPPORTED_EXTENSIONS",
    "can_convert",
    "check_supported",
    "container_of",
    "register",
]


def _tar() -> Container:
    from dsort.containers.tar.container import TAR

    return TAR


def _tfrecord() -> Container:
    from dsort.containers.tfrecord.container import TFRECORD

    return TFRECORD


def _json_lines() -> Container:
    from dsort.containers.lines.container import JSON_LINES

    return JSON_LINES


def _text_lines() -> Container:
    from dsort.containers.lines.container import TEXT_LINES

    return TEXT_LINES


def _zip() -> Container:
    from dsort.containers.zip.container import ZIP

    return ZIP


def _mds() -> Container:
    from dsort.containers.mds.container import MDS

    return MDS


DEFAULT_EXTENSION: Final = ".tar"
"""What shards are whose names do not say."""

_BUILT_IN: Final[dict[str, Callable[[], Container]]] = {
    DEFAULT_EXTENSION: _tar,
    ".tfrecord": _tfrecord,
    ".tfrecords": _tfrecord,
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".txt": _text_lines,
    ".zip": _zip,
    ".mds": _mds,
}

SUPPORTED_EXTENSIONS: Final = tuple(_BUILT_IN)
"""The archive suffixes that dsort reads and writes by itself."""

_registered: dict[str, Container] = {}


def register(container: Container) -> None:
    """Have shards whose names end in one of the container's suffixes be read and written by it, in
    this process and in the workers that it starts."""
    for suffix in container.suffixes:
        _registered[suffix] = container
        add_archive_extension(suffix)


def check_supported(extension: str) -> None:
    """``ValueError`` for a known extension whose container dsort cannot read and write yet."""
    if extension not in _BUILT_IN and extension not in _registered:
        usable = " ".join(dict.fromkeys((*_BUILT_IN, *_registered)))
        raise ValueError(f"{extension} shards are not yet supported (usable now: {usable})")


def container_of(name: str) -> Container:
    """The container of the shard ``name``, or of an extension: that of the longest suffix that it
    ends in; tar if there is none."""
    known = (*_registered, *_BUILT_IN)
    suffix = max((each for each in known if name.endswith(each)), key=len, default="")
    if suffix in _registered:
        return _registered[suffix]
    return _BUILT_IN[suffix or DEFAULT_EXTENSION]()


def can_convert(extension: str, other: str) -> bool:
    """Whether shards of ``extension`` can be written as shards of ``other``."""
    if extension == other:
        return True
    container, wanted = container_of(extension), container_of(other)
    return container is wanted or wanted.packs_others
