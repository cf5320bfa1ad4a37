"""Names of shards: archive suffixes, which names an output may have, and suggestions for mistyped
names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final
from unicodedata import category
from urllib.parse import unquote

from dsort.naming.extensions import CODECS, CONTAINERS, DEFAULT_EXTENSION

SHORT_EXTENSIONS: Final = {".tgz": ".tar.gz"}
"""Suffixes that stand for a container and a codec."""

ARCHIVE_EXTENSIONS: Final = tuple(
    dict.fromkeys((DEFAULT_EXTENSION, *SHORT_EXTENSIONS, *CONTAINERS))
)
"""The suffixes that mark a name as that of a shard, by themselves or followed by one of
``CODEC_EXTENSIONS``."""

CODEC_EXTENSIONS: Final = tuple(suffix for codec in CODECS for suffix in codec.suffixes)
"""The suffixes of codecs: ``.tar.gz`` is a tar, compressed."""

KEY_COLUMN: Final = "__key__"
"""The column, feature or field with the key of a record, in shards whose members have no names;
webdataset uses the same name."""

SAMPLE_FIELDS: Final = (KEY_COLUMN, "__url__", "__local_path__")
"""Fields of a sample that are not members."""

VIEW_SUFFIX: Final = ".view"
"""The end of the name of a file of a view, after the name of the output shard for which the file
stands."""

INTERNAL_PART: Final = ".dsort"
"""The name part of dsort's own files; no bucket, no input and no output may have it."""

_SPELT_OUT: Final = {".gzip": ".gz", ".bzip2": ".bz2"}
_NUMBER = r"(?:[0-9]+|\{[^{}]*\}|%[0-9]*d)"
_NUMBERS = re.compile(rf"(?<=[a-z0-9])-{_NUMBER}-of-{_NUMBER}\Z")

_SHOWN_CHARS_MAX = 100
_PART_BYTES_MAX = 255
"""No common file system stores a longer name part."""


def shortened(text: str) -> str:
    """``text``, or its beginning followed by ``...`` if it is too long for a message."""
    return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}..."


def readable(name: bytes) -> str:
    """The name of a member, or a key, for a message. Bytes that are not UTF-8 are escaped
    (``\\xff``)."""
    return name.decode("utf-8", "backslashreplace")


def is_utf8(content: bytes) -> bool:
    """Whether bytes are text."""
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def key_problem(key: bytes) -> str:
    """The reason, in words, why no record can have ``key``: its members would be parts of another
    record, or would be unpacked outside of their directory. "" if a record can have it."""
    base = key.rpartition(b"/")[2]
    if b"\0" in key:
        return "has a zero byte in it"
    if key.startswith(b"/") or b".." in key.split(b"/"):
        return "leads out of the directory that it is unpacked in"
    if b"." in base:
        return "has a dot, behind which its extension would begin"
    return "" if base else "has no name behind its last slash"


def directory_of(name: str) -> str:
    """The directory that an object is in, with its slash; "" at the top."""
    return name[: name.rfind("/") + 1]


def is_hidden(name: str) -> bool:
    """Whether a part of the name begins with a dot. Shells and other programs read such files when
    they start."""
    return any(part.startswith(".") for part in name.split("/"))


def first_few(names: Sequence[str], count: int = 3) -> str:
    """The first ``count`` names with commas between them, and ``…`` if there are more."""
    return ", ".join(names[:count]) + (", …" if len(names) > count else "")


_added_extensions: set[str] = set()
_codec_extensions: tuple[str, ...] = CODEC_EXTENSIONS


def add_archive_extension(extension: str) -> None:
    """Treat names that end in ``extension`` as names of shards, in this process."""
    if extension not in ARCHIVE_EXTENSIONS:
        _added_extensions.add(extension)


def add_codec_extension(extension: str) -> None:
    """Treat ``extension`` as the suffix of a codec, in this process."""
    global _codec_extensions
    _codec_extensions = tuple(dict.fromkeys((*_codec_extensions, extension)))


def archive_extension(name: str) -> str | None:
    """The longest archive suffix that ``name`` ends in (``"a/b.tar.gz"``: ``".tar.gz"``), or None.
    Ignores the numbers that TensorFlow appends: ``a.tfrecord-00000-of-00010``."""
    name = without_numbers(name)
    codec = codec_extension(name)
    raw = name.removesuffix(codec)
    if not raw.endswith(ARCHIVE_EXTENSIONS) and not _added_extensions:
        return None
    known = (*ARCHIVE_EXTENSIONS, *_added_extensions)
    found = max((each for each in known if raw.endswith(each)), key=len, default=None)
    return None if found is None or (codec and found in SHORT_EXTENSIONS) else found + codec


def without_numbers(name: str) -> str:
    """A name, or a template of names, without the numbers that TensorFlow appends to the suffix of
    a shard: ``-00000-of-00010``."""
    return _NUMBERS.sub("", name)


def codec_extension(name: str) -> str:
    """The suffix of a codec at the end of ``name`` (``"a.tar.gz"``: ``".gz"``); "" if there is
    none. Numbers behind a suffix are not removed first."""
    if not name.endswith(_codec_extensions):  # the fast path: called for each shard
        return ""
    found = (each for each in _codec_extensions if name.endswith(each))
    return max(found, key=len, default="")


def normalize_extension(text: str) -> str:
    """``text`` as an archive extension: ``"tar"`` and ``" .tar"`` are ``".tar"``.

    ``ValueError`` for anything else. The whole text is compared: AIStore searches for the suffix
    anywhere in the text and so takes ``gzip`` for ``.zip``.
    """
    stripped = text.strip()
    extension = stripped if stripped.startswith(".") else f".{stripped}"
    if archive_extension(extension) != extension:
        meant = suggested_extension(extension)
        if meant:
            raise ValueError(f"{text!r} is no archive extension: {meant}")
        known, codecs = " ".join(ARCHIVE_EXTENSIONS), " ".join(_codec_extensions)
        raise ValueError(
            f"{text!r} is no archive extension (known ones: {known}, also with {codecs} behind)"
        )
    return extension


def suggested_extension(name: str) -> str:
    """A suggestion for a ``name`` whose end is no archive extension: a short sentence, or ""."""
    from difflib import get_close_matches  # only mistakes need it

    for spelt, suffix in _SPELT_OUT.items():
        name = name.removesuffix(spelt) + suffix if name.endswith(spelt) else name
    codec = codec_extension(name)
    raw = name.removesuffix(codec)
    dot = raw.rfind(".")
    if codec and dot < 0:
        return f"{codec} is how a shard is compressed, as in .tar{codec}"
    meant = get_close_matches(raw[max(dot, 0) :].lower(), ARCHIVE_EXTENSIONS, 1, 0.75)
    return f"did you mean {meant[0]}{codec}?" if meant else ""


def position_key(shard: str, ordinal: int) -> bytes:
    """The key of a record without a stored key: the name of its shard without its suffix, and its
    position in the shard, from 0 on. Such keys sort in the order of the records. Dots in the last
    part become ``__``, because the key would end at a dot in a member's name: ``a.train.jsonl`` is
    ``a__train``."""
    directory, slash, base = shard.rpartition("/")
    stem = base.removesuffix(archive_extension(base) or "").replace(".", "__") or "shard"
    return f"{directory}{slash}{stem}-{ordinal:09d}".encode("utf-8", "surrogateescape")


def with_extension(name: str, extension: str) -> str:
    """``name`` with ``extension`` at its end, unless it has a known archive suffix already."""
    return name if archive_extension(name) else name + extension


def check_object_name(name: str) -> None:
    """``ValueError`` unless ``name`` is a relative ``/``-separated name that stays in its bucket.

    It refuses the empty name, a leading ``/``, the parts "", ``.`` and ``..``, NUL, text that UTF-8
    cannot encode, parts longer than file systems store, and all names under a ``.dsort/``, where
    dsort keeps its own files.
    """
    if not name:
        raise ValueError("a name must not be empty")
    if name.startswith("/"):
        raise ValueError(f"{shortened(name)!r} is absolute: names are relative to their bucket")
    if "\0" in name:
        raise ValueError(f"{shortened(name)!r} contains a NUL character")
    for part in name.split("/"):
        if not part:
            raise ValueError(
                f"{shortened(name)!r} has an empty part (two slashes in a row, or one at its end)"
            )
        if part in (".", ".."):
            raise ValueError(f"{shortened(name)!r} has a {part!r} part")
        if _length_bytes(part, name) > _PART_BYTES_MAX:
            raise ValueError(f"{shortened(name)!r} has a part of more than {_PART_BYTES_MAX} bytes")
    if is_internal(name):
        raise ValueError(
            f"{shortened(name)!r} is under {INTERNAL_PART}/, where dsort keeps its own files"
        )


def check_output_name(name: str) -> None:
    """``ValueError`` unless ``name`` may be the name of an output shard.

    Refuses the names that :func:`check_object_name` refuses, and also control characters, ``#`` and
    ``?`` (readers that treat names as URLs, such as WebDataset's, cut them there).
    """
    check_object_name(name)
    if has_control_characters(name):
        raise ValueError(f"{shortened(name)!r} contains a control character")
    for sign in "#?":
        if sign in name:
            raise ValueError(
                f"{shortened(name)!r} contains {sign!r}, at which readers of URLs end a name"
            )


def is_internal(path: str) -> bool:
    """Whether a ``/``-separated path is a ``.dsort``, or leads into one. Buckets that are
    directories below the bucket have one, too."""
    return INTERNAL_PART in path.split("/")


def has_control_characters(text: str) -> bool:
    """Whether ``text`` contains characters that are commands to a terminal (C0, DEL, C1)."""
    return not text.isprintable() and any(category(each) == "Cc" for each in text)


def _length_bytes(part: str, name: str) -> int:
    try:
        return len(part.encode())
    except UnicodeEncodeError:
        raise ValueError(f"{shortened(name)!r} cannot be written as UTF-8") from None


def closest(name: str, known: Iterable[str]) -> str | None:
    """The text in ``known`` that is most similar to ``name``; None if none is similar."""
    from difflib import get_close_matches  # only mistakes need it

    by_lower = {each.lower(): each for each in known}
    near = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[near[0]] if near else None


def absent_hint(uri: str) -> str:
    """A remedy for a user who named a bucket that does not exist. Looks at the text only."""
    if not uri.startswith("file:"):
        return "check the name, the endpoint and the credentials"
    path, _, last = place(uri).rpartition("/")
    if set(last) & set("*?[{"):
        return (
            f"a bucket is a whole directory, such as {path}; in a spec (--print-spec prints one), "
            "input_format names some of its shards: {glob: ...}, {template: ...}"
        )
    return (
        "check the path: a bucket is a directory, not a file; a bare name is a directory below "
        "the data root (--root, DSORT_ROOT; else the current directory)"
    )


def place(uri: str) -> str:
    """The place of a bucket for messages: the URI, or for a directory of this machine its path,
    which is easier to copy."""
    return unquote(uri.removeprefix("file://")) if uri.startswith("file:///") else uri


def suffixes_hint(names: Iterable[str]) -> str:
    """A hint with the suffixes of the shards among ``names``, which a job has passed over; "" if
    there are none."""
    names = list(names)
    if any(name.endswith(VIEW_SUFFIX) for name in names):
        return "it has a view: `dsort materialize` makes the shards"
    suffixes = sorted({archive_extension(name) or "" for name in names} - {""})
    if not suffixes:
        return ""
    return f"there are shards that end in {first_few(suffixes)}: set input_extension"
