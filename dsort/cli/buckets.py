"""Buckets as they are written on a command line: as in a spec, and as paths."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dsort.cli.output import place
from dsort.errors import ObjectNotFoundError

if TYPE_CHECKING:
    from dsort.storage.base import Bucket

__all__ = ["bucket_uri", "open_argument", "open_existing"]

PATH_BEGINNINGS = ("/", "./", "../")


def bucket_uri(text: str) -> str:
    """The bucket that ``text`` means, in the words of a spec.

    Besides bare names (under the data root) and URIs, which a spec takes too, a text that looks
    like a path (``/data/images``, ``./images``) is that directory, seen from where we are.
    """
    if text == ".." or text.startswith(PATH_BEGINNINGS):
        return Path(text).resolve().as_uri()
    return text


def open_argument(text: str, *, root: Path) -> Bucket:
    """The bucket that ``text`` means; ``SpecError`` if it means none."""
    from dsort.storage.addresses import open_bucket

    return open_bucket(bucket_uri(text), root=root)


def open_existing(text: str, *, root: Path) -> Bucket:
    """The bucket that ``text`` means; ``ObjectNotFoundError`` if there is none."""
    bucket = open_argument(text, root=root)
    if not bucket.exists():
        raise ObjectNotFoundError(
            f"there is no bucket {place(bucket.uri)}",
            hint="a bare name is a directory under the data root (--root, DSORT_ROOT)",
        )
    return bucket
