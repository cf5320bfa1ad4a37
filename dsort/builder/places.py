"""Turns a place in a call into a bucket and the shards in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from dsort.naming.names import archive_extension
from dsort.spec.buckets import bucket_value
from dsort.storage.ref import BucketRef

__all__ = ["Place", "input_place", "name_of", "output_place"]

Place = str | Path | BucketRef | dict[str, Any]

_RANGE: Final = re.compile(r"\{|@\d|%\d*d")
_PATTERN: Final = re.compile(r"[*?\[]|" + _RANGE.pattern)
_GLOB: Final = re.compile(r"[*?\[]")
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_NAME_MAX: Final = 60


def input_place(where: Place) -> tuple[Any, dict[str, Any]]:
    """(``input_bck``, ``input_format``) of a place to read: a bucket, a shard of it
    (``images/a.tar``), a range of names (``images/a-{00..18}.tar``) or a pattern
    (``images/**/*.tar``)."""
    if not isinstance(where, (str, Path)):
        return _value(where), {}
    text = str(where)
    at = _PATTERN.search(text)
    if at is not None:
        bucket, names = _parted(text, at.start())
        return bucket, {"glob" if _GLOB.search(names) else "template": names}
    head, slash, tail = text.rpartition("/")
    if archive_extension(tail if slash else text):
        return _bucket(head if slash else "."), {"objnames": [tail if slash else text]}
    return _bucket(text), {}


def output_place(where: Place) -> tuple[Any, str | None]:
    """(``output_bck``, ``output_format``) of a place to write; None: another call has the names."""
    if not isinstance(where, (str, Path)):
        return _value(where), None
    text = str(where)
    at = _RANGE.search(text)
    if at is None:
        return _bucket(text), None
    return _parted(text, at.start())


def _value(where: BucketRef | dict[str, Any]) -> Any:
    """A bucket in the form of a spec file."""
    return bucket_value(where) if isinstance(where, BucketRef) else where


def _parted(text: str, at: int) -> tuple[str, str]:
    """(bucket, rest) of a text. The bucket ends at the last slash before position ``at``, where the
    part that stands for several names begins."""
    head, slash, tail = text[:at].rpartition("/")
    return _bucket(head if slash else "."), tail + text[at:]


def _bucket(text: str) -> str:
    """An absolute path becomes a URI, because paths in a spec are relative to the data root."""
    return Path(text).as_uri() if text.startswith("/") else text or "/"


def name_of(bucket: Any, taken: set[str]) -> str:
    """The default name of an input from that bucket: the last part of its path."""
    text = str(bucket.get("name", "")) if isinstance(bucket, dict) else str(bucket)
    last = _SCHEME.sub("", text).rstrip("/").rpartition("/")[2]
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", last).strip("-")[:_NAME_MAX] or "input"
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}-{number}"
    return found
