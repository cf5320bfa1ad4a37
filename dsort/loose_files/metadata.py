"""Trees that tables describe: Hugging Face's ``metadata.csv``, ``.jsonl`` or ``.parquet``.

A row names its file in ``file_name``, more files in ``<name>_file_name`` or ``file_names``, by
paths from the table's directory. Its other columns become the record's ``.json``.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Mapping

from dsort.errors import DuplicateError, InputError, MissingShardError
from dsort.loose_files.listing import stamp_of
from dsort.loose_files.member_names import BETWEEN, NameRules
from dsort.loose_files.members import Members
from dsort.loose_files.tables import TABLE_SUFFIXES, Row, json_payload, rows_of
from dsort.naming.names import readable
from dsort.storage.bucket import ObjectInfo

__all__ = ["UNLISTED", "add_described", "is_metadata"]

UNLISTED = "unlisted"
_NAMES = ("utf-8", "surrogateescape")
_TABLES = tuple(f"metadata{suffix}" for suffix in TABLE_SUFFIXES)


def is_metadata(name: str) -> bool:
    """Whether an object is a table that describes the files around it."""
    return name.rpartition("/")[2] in _TABLES


def add_described(
    members: Members,
    rules: NameRules,
    number: int,
    files: Mapping[str, ObjectInfo],
    read: Callable[[str], bytes],
) -> None:
    """The members that tables among ``files`` make of them. ``read``: the bytes of one of them.
    ``InputError`` names the row that is wrong; files of no row are left out as ``UNLISTED``."""
    tables = sorted(filter(is_metadata, files))
    if not tables:
        raise MissingShardError(
            f"there is no {', '.join(_TABLES)} among the files",
            hint="ingest.layout: folders and files need none",
        )
    named: dict[str, str] = {}
    for table in tables:
        directory = table.rpartition("/")[0]
        for where, row in rows_of(table, read(table)):
            _add_row(members, rules, number, files, directory, where, row, named)
    for name in files:
        if name not in named and not is_metadata(name):
            members.leave_out(UNLISTED, name)


def _add_row(
    members: Members,
    rules: NameRules,
    number: int,
    files: Mapping[str, ObjectInfo],
    directory: str,
    where: str,
    row: Row,
    named: dict[str, str],
) -> None:
    key: bytes | None = None
    rest = dict(row)
    for prefix, text in _file_names(where, row, rest):
        name = _path(where, directory, text)
        if name not in files:
            raise MissingShardError(f"{where} names {text}, which is not there")
        if name in named:
            raise DuplicateError(f"{where} names {text}, as does {named[name]}")
        named[name] = where
        path = name.encode(*_NAMES)
        found = rules.member_of(path)
        if isinstance(found, str):
            raise InputError(f"{where} names {text}, which can be no member of a record: {found}")
        key = found[0] if key is None else key
        info = files[name]
        extension = prefix.encode(*_NAMES) + found[1]
        members.add(key + BETWEEN + extension, info.size_bytes, number, path, stamp_of(info))
    if key is None:
        raise InputError(f"{where} names no file", hint="a table has a column file_name")
    if rest:
        members.add_text(key, b"json", json_payload(where, rest))


def _file_names(where: str, row: Row, rest: Row) -> Iterator[tuple[str, str]]:
    """(what stands before its extension, the file) of each file of a row, taken out of ``rest``.
    The first one gives the record its key."""
    columns = [name for name in row if name == "file_name" or name.endswith("_file_name")]
    for column in sorted(columns, key=lambda name: name != "file_name"):
        value = rest.pop(column)
        if value is None or value == "":
            continue  # this record has no such file
        if not isinstance(value, str):
            raise InputError(f"{where}: {column} is no name of a file")
        prefix = column.removesuffix("file_name").removesuffix("_")
        if "." in prefix or "/" in prefix or "\0" in prefix:
            raise InputError(f"{where}: {readable(column.encode(*_NAMES))} is no usable column")
        yield f"{prefix}." * bool(prefix), value
    several = rest.pop("file_names", None)
    if several is None:
        return
    if not isinstance(several, list) or not all(isinstance(each, str) for each in several):
        raise InputError(f"{where}: file_names is no list of names of files")
    for at, value in enumerate(several):
        yield f"{at}.", value


def _path(where: str, directory: str, text: str) -> str:
    """The file ``text`` of a table in ``directory``; never one outside of it."""
    parts = text.split("/")
    if ".." in parts or text.startswith("/") or "://" in text or "\0" in text:
        raise InputError(f"{where} names {text!r}, which is not below its table")
    name = posixpath.normpath(text)
    return f"{directory}/{name}" if directory else name
