"""What may be the name of an object, so that no name leads out of its bucket."""

from __future__ import annotations

from dsort.errors import InvariantError, StorageError
from dsort.storage.bucket import INTERNAL_PREFIX

__all__ = ["encoded_name", "encoded_prefix", "encoded_token"]


def encoded_name(name: str) -> bytes:
    """The bytes of ``name`` on a file system.

    A name is relative, its parts are separated by ``/``, and no part is empty, ``.`` or ``..``.
    Bytes that are not UTF-8 are carried as lone surrogates, as Python does for file names.
    ``StorageError`` for anything else.
    """
    parts = name.split("/")
    if "" in parts:
        raise _refused(name, "it is empty, or has an empty part (a / at an end or two in a row)")
    return _encoded(name, parts)


def encoded_prefix(prefix: str) -> bytes:
    """The bytes of a prefix of names; its last part may be incomplete or empty."""
    *directories, _ = prefix.split("/")
    if "" in directories:
        raise _refused(prefix, "it begins with / or has an empty part")
    return _encoded(prefix, directories)


def encoded_token(token: str) -> bytes:
    """The bytes of the name of a staged object; ``InvariantError`` outside ``INTERNAL_PREFIX``."""
    if not token.startswith(INTERNAL_PREFIX):
        raise InvariantError(f"staged object {token!r} is not under {INTERNAL_PREFIX}")
    return encoded_name(token)


def _encoded(name: str, parts: list[str]) -> bytes:
    if "." in parts or ".." in parts:
        raise _refused(name, "it has a part that is . or ..")
    if "\0" in name:
        raise _refused(name, "it has a zero byte in it")
    try:
        return name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise _refused(name, "it is not Unicode text") from None


def _refused(name: str, reason: str) -> StorageError:
    return StorageError(
        f"{name!r} cannot be a name in a bucket: {reason}",
        hint="names are relative to the bucket, such as train/shard-000001.tar",
    )
