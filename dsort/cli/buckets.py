"""Buckets as they are written on a command line: as in a spec, and as paths."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from dsort.cli.output import place
from dsort.errors import ObjectNotFoundError
from dsort.settings import Settings, load_settings

if TYPE_CHECKING:
    from dsort.storage.bucket import Bucket

__all__ = [
    "bucket_uri",
    "data_root",
    "object_in",
    "open_argument",
    "open_existing",
    "scratch_bases",
    "user_settings",
]

PATH_BEGINNINGS = ("/", "./", "../")


def bucket_uri(text: str) -> str:
    """The bucket that ``text`` means, in the words of a spec.

    Besides bare names (under the data root) and URIs, which a spec takes too, a text that looks
    like a path (``/data/images``, ``./images``) is that directory, seen from where we are.
    """
    if text == ".." or text.startswith(PATH_BEGINNINGS):
        return Path(text).resolve().as_uri()
    return text


def object_in(text: str) -> tuple[str, str] | None:
    """(bucket, name) of an object that ``text``, the URI of an object store, means; None if it is
    no such URI. ``SpecError`` if it names a bucket only."""
    from dsort.errors import SpecError
    from dsort.storage.bucket_ref import BucketRef
    from dsort.storage.bucket_uri import split_scheme
    from dsort.storage.open import parse_address

    written = split_scheme(text)
    if written is None or written[0] == "file":
        return None
    ref = parse_address(text)
    bucket, _, name = ref.path.rpartition("/")
    if not bucket:
        raise SpecError(f"{text} names no object", hint=f'write "{ref.uri}/NAME"')
    return BucketRef(ref.scheme, bucket).uri, name


def user_settings() -> Settings:
    """The settings of whoever gave this command, where it was given."""
    return load_settings(os.environ, Path(), Path("~").expanduser())


def data_root(given: Path | None, settings: Settings) -> Path:
    """The data root: ``--root``, else that of the settings, else the current directory."""
    return given or settings.root or Path()


def open_argument(text: str, *, root: Path | None) -> Bucket:
    """The bucket that ``text`` means, reached as the user's settings say; ``SpecError`` if it means
    none. ``root``: ``--root``."""
    from dsort.options import open_with_settings

    settings = user_settings()
    return open_with_settings(bucket_uri(text), root=data_root(root, settings), settings=settings)


def open_existing(text: str, *, root: Path | None) -> Bucket:
    """The bucket that ``text`` means; ``ObjectNotFoundError`` if there is none."""
    bucket = open_argument(text, root=root)
    if not bucket.exists():
        hint = "a bare name is a directory under the data root (--root, DSORT_ROOT)"
        raise ObjectNotFoundError(
            f"there is no bucket {place(bucket.uri)}",
            hint=hint if bucket.uri.startswith("file:") else "",
        )
    return bucket


def scratch_bases() -> list[Path]:
    """Where this user's jobs have their scratch, and those of a service of theirs."""
    from dsort.service.config import scratch_dir_of, state_dir_of

    own = user_settings().scratch
    bases = [Path(tempfile.gettempdir()), scratch_dir_of(state_dir_of(None))]
    return bases if own is None else [own, *bases]
