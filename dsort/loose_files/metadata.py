"""Trees of files that tables describe: Hugging Face's ``metadata.csv``, ``.jsonl`` or ``.parquet``.

A row names its file in ``file_name``, more files in ``<name>_file_name`` or ``file_names``, by
paths from the table's directory. Its other columns become the record's ``.json``.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Mapping

from dsort.errors import DuplicateError, InputError, MissingShardError
from dsort.loose_files.member_names import UNUSABLE, NameRules
from dsort.loose_files.members import Members
from dsort.loose_files.tables import TABLE_SUFFIXES, Row, json_payload, name_bytes, rows_of
from dsort.naming.names import readable

__all__ = ["UNLISTED", "add_described", "is_metadata"]

UNLISTED = "unlisted"
_NAMES = ("utf-8", "surrogateescape")
_TABLES = tuple(f"metadata{suffix}".encode() for suffix in TABLE_SUFFIXES)


def is_metadata(path: bytes) -> bool:
    """Whether a file is a table that describes the files around it."""
    return path[path.rfind(b"/") + 1 :] in _TABLES


def add_described(
    members: Members,
    rules: NameRules,
    number: int,
    files: Mapping[bytes, tuple[int, int]],
    read: Callable[[bytes], bytes],
) -> None:
    """Add the members that tables among ``files`` make of these files. ``files``: (size, stamp) of
    each by its path. ``read``: returns the bytes of one of them. ``InputError`` names a row that is
    invalid; files in no row are left out as ``UNLISTED``."""
    tables = sorted(filter(is_metadata, files))
    if not tables:
        raise MissingShardError(
            f"there is no metadata{', metadata'.join(TABLE_SUFFIXES)} among the files",
            hint="ingest.layout: folders and files need none",
        )
    named: dict[bytes, str] = {}
    for table in tables:
        name = table.decode(*_NAMES)
        directory = name.rpartition("/")[0]
        for where, row in rows_of(name, read(table)):
            _add_row(members, rules, number, files, directory, where, row, named)
    for path in files:
        if path not in named and not is_metadata(path):
            members.leave_out(UNLISTED, path.decode(*_NAMES))


def _add_row(
    members: Members,
    rules: NameRules,
    number: int,
    files: Mapping[bytes, tuple[int, int]],
    directory: str,
    where: str,
    row: Row,
    named: dict[bytes, str],
) -> None:
    key: bytes | None = None
    rest = dict(row)
    for prefix, text in _file_names(where, row, rest):
        path = name_bytes(where, _path(where, directory, text))
        if path not in files:
            raise MissingShardError(f"{where} names {text}, which is not there")
        if path in named:
            raise DuplicateError(f"{where} names {text}, as does {named[path]}")
        named[path] = where
        found = rules.member_of(path)
        if isinstance(found, str):
            why = UNUSABLE.get(found, found)
            raise InputError(f"{where} names {text}, which can be no member of a record: {why}")
        key = found[0] if key is None else key
        size, stamp = files[path]
        extension = name_bytes(where, prefix) + found[1]
        members.add(key, extension, size, number, path, stamp)
    if key is None:
        raise InputError(f"{where} names no file", hint="a table has a column file_name")
    if rest:
        members.add_text(key, b"json", json_payload(where, rest))


def _file_names(where: str, row: Row, rest: Row) -> Iterator[tuple[str, str]]:
    """(the text before its extension, the file) of each file of a row; these columns are removed
    from ``rest``. The first file gives the record its key."""
    columns = [name for name in row if name == "file_name" or name.endswith("_file_name")]
    for column in sorted(columns, key=lambda name: name != "file_name"):
        value = rest.pop(column)
        if value is None or value == "":
            continue  # the record does not have this file
        if not isinstance(value, str):
            raise InputError(f"{where}: {column} is no name of a file")
        prefix = column.removesuffix("file_name").removesuffix("_")
        if "." in prefix or "/" in prefix or "\0" in prefix:
            raise InputError(f"{where}: {readable(name_bytes(where, column))} is no usable column")
        yield f"{prefix}." * bool(prefix), value
    several = rest.pop("file_names", None)
    if several is None:
        return
    if not isinstance(several, list) or not all(isinstance(each, str) for each in several):
        raise InputError(f"{where}: file_names is no list of names of files")
    for at, value in enumerate(several):
        yield f"{at}.", value


def _path(where: str, directory: str, text: str) -> str:
    """The path of the file ``text`` of a table in ``directory``; never outside of that
    directory."""
    parts = text.split("/")
    if ".." in parts or text.startswith("/") or "://" in text or "\0" in text:
        raise InputError(f"{where} names {text!r}, which is not below its table")
    name = posixpath.normpath(text)
    return f"{directory}/{name}" if directory else name
