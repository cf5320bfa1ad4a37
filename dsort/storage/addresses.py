"""Parses the texts that name a bucket, in specs, in commands and on the wire."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import unquote

from dsort.errors import SpecError
from dsort.storage.ref import (
    PIPE,
    STREAM,
    BucketRef,
    BucketTextError,
    decoded,
    refuse_internal,
    shown,
)
from dsort.storage.registry import misspelt_uri, parse_store_uri, split_scheme

EXAMPLES: Final = 'e.g. "images", "file:///data/images" or "s3://bucket/images"'
PIPE_HINT: Final = 'write {"pipe": ["curl", "-sf", "https://host/shard.tar"]}'
_ROOT_HINT: Final = "a bare name is a directory under the data root (--root, DSORT_ROOT)"
_FORMS_HINT: Final = (
    "write file:///absolute/path, s3://bucket/prefix, or the name of a directory under the data "
    "root"
)


def parse_address(uri: str) -> BucketRef:
    """The bucket that a text outside of specs names: a URI, or a directory of any name under the
    data root. ``SpecError`` for any other text."""
    try:
        return parse_text(uri, any_directory=True)
    except BucketTextError as error:
        raise SpecError(f"bucket {error}", hint=error.hint or _FORMS_HINT) from None


def parse_text(text: str, *, any_directory: bool = False) -> BucketRef:
    """The bucket that ``text`` names: a URI, a directory under the data root, or ``-`` for standard
    input and output. ``BucketTextError`` if it names none.

    ``any_directory``: a directory may have a name that specs do not allow, such as one that is not
    UTF-8, or ``-``.
    """
    if text == "-" and not any_directory:
        return BucketRef(STREAM, text)
    if text.startswith(f"{PIPE}:"):
        raise BucketTextError(
            f"{shown(text)}: a program is not written as one text, which a shell would have to "
            "take apart",
            PIPE_HINT,
        )
    written = split_scheme(text)
    if written is None:
        return _any_name(text) if any_directory else bare_name(text)
    scheme, rest = written
    if scheme != "file":
        return parse_store_uri(text)
    if rest.startswith("localhost/"):
        rest = rest.removeprefix("localhost")
    if not rest.startswith("/"):
        raise BucketTextError(f'"{text}" is not absolute', f'e.g. "file:///{rest}"')
    if any_directory:
        return BucketRef("file", _whole(unquote(rest, errors="surrogateescape"), text))
    if "#" in rest or "?" in rest:
        raise BucketTextError(f'"{text}" has a query or a fragment', "write # as %23 and ? as %3F")
    return directory_at(decoded(rest, text), text)


def directory_at(path: str, text: str) -> BucketRef:
    """The directory at the absolute ``path``, in a spec. ``text``: for messages."""
    if not path.startswith("/"):
        raise BucketTextError(f'"{text}" is not absolute', f'e.g. "file:///{path}"')
    return BucketRef("file", "/" + clean_path(path, text))


def bare_name(name: str) -> BucketRef:
    """The directory ``name`` under the data root, in a spec."""
    if not name:
        raise BucketTextError("missing bucket name", EXAMPLES)
    if name.startswith("/"):
        raise BucketTextError(f'"{name}" is absolute', f'write "file://{name}"; {_ROOT_HINT}')
    _refuse_misspelt(name)
    if ":" in name or name.startswith("~"):
        hint = 'a path is written "file:///data/images"'
        raise BucketTextError(f"{shown(name)} is no bucket name", hint)
    if name in (".", "./"):
        return BucketRef("", ".")  # the data root itself
    path = clean_path(name, name)
    if path.startswith("."):
        raise BucketTextError(f'"{name}" is reserved: bucket names do not begin with a dot')
    return BucketRef("", path)


def clean_path(path: str, text: str) -> str:
    """``path`` without slashes that do not count. ``BucketTextError``, which quotes ``text``, for
    invalid parts."""
    parts = [part for part in path.split("/") if part]
    if not parts:
        raise BucketTextError(f'"{text}" names no directory')
    if ".." in parts or "." in parts:
        raise BucketTextError(f'"{text}" has a "." or ".." part', _ROOT_HINT)
    if not path.isprintable():
        raise BucketTextError(f"{text!r} contains characters that cannot be printed")
    refuse_internal("/".join(parts), text)
    return "/".join(parts)


def _any_name(name: str) -> BucketRef:
    _refuse_misspelt(name)
    path = Path(name)
    if not name or ":" in name or path.is_absolute() or ".." in path.parts:
        raise BucketTextError(
            f"{name!r} is not the name of a directory under the data root",
            f"write {path.as_uri()}" if path.is_absolute() else "",
        )
    return BucketRef("", _whole(name, name))


def _whole(path: str, text: str) -> str:
    if "\0" in path:
        raise BucketTextError(f"{text!r} has a zero byte in it", _FORMS_HINT)
    return path


def _refuse_misspelt(text: str) -> None:
    misspelt = misspelt_uri(text)
    if misspelt is not None:
        raise misspelt
