"""Finds the container of a shard, and the codec around it, from the suffixes of its name.

A container is loaded only when it is requested, so that a spec is read without NumPy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib import import_module
from typing import Any, Final

from dsort.containers.base import Container
from dsort.containers.codecs.base import Codec
from dsort.containers.codecs.decoding import Decoding, format_of
from dsort.errors import CorruptShardError
from dsort.naming.extensions import CODECS, CONTAINERS, DEFAULT_EXTENSION
from dsort.naming.names import (
    SHORT_EXTENSIONS,
    add_archive_extension,
    add_codec_extension,
    archive_extension,
    codec_extension,
    without_numbers,
)
from dsort.registry import Registry

_CODECS: Final = {suffix: codec.place for codec in CODECS for suffix in codec.suffixes}


def _loaded(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(f"dsort.containers.{module}"), name)


class _Containers(Registry[Container]):
    """The containers from outside dsort, by suffix."""

    def register(self, item: Container) -> None:
        super().register(item)
        for suffix in item.suffixes:
            add_archive_extension(suffix)
        container_of.cache_clear()


class _Codecs(Registry[Codec]):
    """The codecs from outside dsort, by suffix."""

    def register(self, item: Codec) -> None:
        super().register(item)
        for suffix in item.suffixes:
            add_codec_extension(suffix)


_added_codecs = _Codecs("dsort.codecs", lambda codec: codec.suffixes, (), reserved=_CODECS)
_registered = _Containers(
    "dsort.containers", lambda container: container.suffixes, (), reserved=CONTAINERS
)


def register(container: Container) -> None:
    """Register ``container``, so that it reads and writes shards with its suffixes, in this process
    and in the workers that this process starts. ``ValueError`` if another container has one of the
    suffixes. A package names its containers in the entry points ``dsort.containers`` instead."""
    _registered.register(container)


def register_received(containers: Iterable[Container], extensions: Iterable[str]) -> None:
    """Register the containers that a coordinator has sent to this process, except dsort's own, and
    the codecs of ``extensions``."""
    if any(each and archive_extension(each) is None for each in extensions):
        load_installed()
    for each in containers:
        if not any(suffix in CONTAINERS or suffix in _registered for suffix in each.suffixes):
            register(each)


def load_installed() -> bool:
    """Register the containers and codecs of installed packages, once for each process; return
    whether any were found. The function is called only when no known container or codec fits a
    name, because looking for packages takes 30 ms."""
    return any([_registered.load_installed(), _added_codecs.load_installed()])


def check_supported(extension: str) -> None:
    """``ValueError`` for a known extension of a container that dsort does not support yet."""
    raw = raw_extension(extension)
    if raw not in CONTAINERS and _registered.find(raw) is None:
        usable = " ".join(dict.fromkeys((*CONTAINERS, *_registered)))
        codecs = " ".join((*_CODECS, *_added_codecs))
        raise ValueError(
            f"{extension} shards are not yet supported (usable now: {usable}, also with {codecs} "
            "behind)"
        )


def check_writable(extension: str) -> None:
    """``ValueError`` for the extension of a codec that dsort only reads."""
    codec = codec_of(extension)
    if codec is not None and not codec.writes:
        raise ValueError(f"{extension} shards are read, and not written: {codec.name} is too slow")


def is_supported(name: str) -> bool:
    """Whether ``name`` is the name of a shard that dsort can read."""
    extension = archive_extension(name)
    if extension is None and load_installed():
        extension = archive_extension(name)
    return extension is not None and (
        raw_extension(extension) in CONTAINERS or raw_extension(extension) in _registered
    )


def is_called(name: str, extension: str) -> bool:
    """Whether ``name`` is the name of a shard of ``extension``, with its container and its codec.
    An extension without a codec covers all codecs: ``.jsonl`` covers ``.jsonl.gz``."""
    if name.endswith(extension):
        return True
    own = archive_extension(name)
    if own is None or not _is_same_container(raw_extension(own), raw_extension(extension)):
        return False
    wanted = _codec_around(extension)
    return wanted in (None, _codec_around(own))  # the other codec need not be installed


def _is_same_container(raw: str, other: str) -> bool:
    return raw == other or (is_supported(raw) and _container_at(raw) == _container_at(other))


def is_columnar(extension: str) -> bool:
    """Whether shards of ``extension`` hold rows of tables, according to its container. The function
    is called for every spec, so it loads none of dsort's own containers."""
    raw = raw_extension(extension)
    if raw in _registered:
        return _registered[raw].is_columnar
    return CONTAINERS.get(raw, "").startswith("columnar.")


@lru_cache(maxsize=64)  # called for each output shard, with the extensions of one spec
def container_of(name: str) -> Container:
    """The container of the shard ``name``, or of an extension, with any codec around it. The
    longest known suffix of ``name`` decides; without a known suffix, the container is tar."""
    place = _container_at(name)
    if not isinstance(place, str):
        return place
    found: Container = _loaded(place)
    codec = codec_extension(without_numbers(name))
    index = found.index
    if index is None or index.compressed is None or codec not in index.codecs:
        return found
    return index.compressed(codec)


def _container_at(name: str) -> Container | str:
    """The container of the shard ``name``. Of dsort's own containers, only the place is returned
    (module and name), so that the container is not loaded: `dsort-client` has no containers."""
    raw = raw_extension(name)
    known = (*_registered, *CONTAINERS)
    suffix = max((each for each in known if raw.endswith(each)), key=len, default="")
    if not suffix and load_installed():
        return _container_at(name)
    return _registered.get(suffix) or CONTAINERS[suffix or DEFAULT_EXTENSION]


def codec_of(name: str) -> Codec | None:
    """The codec around the shard ``name``, or of an extension; None without a codec."""
    found = _codec_around(name)
    if isinstance(found, str):
        codec: Codec = _loaded(found)()
        return codec
    return found


def _codec_around(name: str) -> Codec | str | None:
    """The codec around the shard ``name``. Of dsort's own codecs, only the place is returned
    (module and name), so that the codec is not loaded."""
    extension = archive_extension(name)
    if extension is None:
        return None
    codec = codec_extension(SHORT_EXTENSIONS.get(extension, extension))
    return (_added_codecs.get(codec) or _CODECS[codec]) if codec else None


def raw_extension(name: str) -> str:
    """``name`` without the suffix of its codec."""
    extension = archive_extension(name)
    if extension is None:
        return name
    name = without_numbers(name)
    full = name.removesuffix(extension) + SHORT_EXTENSIONS.get(extension, extension)
    return full.removesuffix(codec_extension(full))


def can_convert(extension: str, other: str) -> bool:
    """Whether shards of ``extension`` can be written as shards of ``other``."""
    if extension == other:
        return True
    container, wanted = container_of(extension), container_of(other)
    if container.is_columnar and wanted.is_columnar:
        return True
    return container is wanted or wanted.is_columnar or wanted.packed is not None


# --------------------------------------------------------------------------------------------------
# Refuses encoded shards whose names do not have the suffix of their codec.


HEAD_BYTES = 262
TRIAL_BYTES = 64 << 10
READ_BYTES = 1 << 20
ZIP_END_BYTES = 22
ZIP_COMMENT_BYTES_MAX = 0xFFFF


def refuse_misnamed(
    shard: str, container: Container, read: Callable[[int, int], bytes], size_bytes: int
) -> None:
    """``CorruptShardError`` for a shard that is encoded although its name shows no codec: the shard
    begins as a codec's files do, and can be decoded. ``read``: returns bytes, by offset and count.

    A text may begin like such a file, too. But the last byte of a text is a line feed, and other
    bytes follow those that can be decoded."""
    found, suffix = format_of(read(0, min(HEAD_BYTES, size_bytes)))
    if found == "zip" and container.begins_bare and _ends_as_zip(read, size_bytes):
        raise CorruptShardError(shard, 0, "the file is a zip", hint="its name should end in .zip")
    codec = codec_of(f".tar{suffix}") if found not in ("", "tar") else None
    if codec is None or not _begins(shard, codec, read(0, min(TRIAL_BYTES, size_bytes))):
        return
    if container.begins_bare and read(size_bytes - 1, 1) == b"\n":
        pieces = (
            read(at, min(READ_BYTES, size_bytes - at)) for at in range(0, size_bytes, READ_BYTES)
        )
        if _goes_on(shard, codec, pieces, size_bytes):
            return
    raise CorruptShardError(
        shard,
        0,
        f"the file is {found}, which its name does not show",
        hint=f"add {suffix} to its name, or set input_extension",
    )


def _ends_as_zip(read: Callable[[int, int], bytes], size_bytes: int) -> bool:
    """Whether the last record of a zip ends at the end of the file."""
    start = max(size_bytes - ZIP_END_BYTES - ZIP_COMMENT_BYTES_MAX, 0)
    tail = read(start, size_bytes - start)
    at = tail.rfind(b"PK\5\6")
    comment = int.from_bytes(tail[at + ZIP_END_BYTES - 2 : at + ZIP_END_BYTES], "little")
    return at >= 0 and at + ZIP_END_BYTES + comment == len(tail)


def _begins(shard: str, codec: Codec, head: bytes) -> bool:
    """Whether ``head`` is the beginning of an encoded file."""
    try:
        return bool(next(iter(Decoding(shard, codec, [head], len(head))), b""))
    except CorruptShardError:
        return False


def _goes_on(shard: str, codec: Codec, pieces: Iterable[bytes], size_bytes: int) -> bool:
    """Whether other bytes follow the encoded members at the beginning of the file. A file that is
    cut off counts as encoded, and so does one that decodes to too many bytes."""
    decoding = Decoding(shard, codec, pieces, size_bytes)
    with contextlib.suppress(CorruptShardError):
        for _ in decoding:
            pass
    return decoding.is_followed
