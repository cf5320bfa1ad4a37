"""Trees of files that tables describe: Hugging Face's ``metadata.csv``, ``.jsonl`` or ``.parquet``.

A row names its file in ``file_name``, and more files in ``<name>_file_name`` or ``file_names``;
paths are relative to the directory of the table. The other columns of a row become the ``.json`` of
the record.
"""

from __future__ import annotations

import csv
import io
import json
import posixpath
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from dsort.errors import DuplicateError, InputError, MissingShardError
from dsort.loose_files.listing import NAMES
from dsort.loose_files.members import UNUSABLE, Members, NameRules
from dsort.naming.names import first_few, readable
from dsort.sizes import format_count

# --------------------------------------------------------------------------------------------------
# Class maps and lists of labels. A class map has the number of each class; a list of labels has a
# number for each record.
#
# They are files that dsort did not write: an invalid one is an ``InputError`` that names the file
# and its line.


NUMBER_END = 10**18


def class_map_of(name: str, data: bytes) -> Mapping[bytes, int]:
    """The number of each class. ``data`` is a JSON object with a number for each name, a JSON list
    of names, lines of ``name,number``, or lines of names only."""
    if data.startswith(b"MATLAB"):
        hint = "write lines of name,number; docs/ingest.md shows how SciPy does it"
        raise InputError(f"{name} is a MATLAB file", hint=hint)
    text = _text(name, data)
    found = _of_json(name, text) if text.lstrip()[:1] in ("{", "[") else _of_lines(name, text)
    classes: dict[bytes, int] = {}
    for each, number in found:
        key = name_bytes(name, each)
        if key in classes:
            raise InputError(f"{name} has the class {each!r} twice")
        classes[key] = number
    return classes


def numbers_of(
    there: Collection[bytes],
    map_name: str,
    given: Mapping[bytes, int] | None,
    known: Mapping[bytes, int] | None,
) -> dict[bytes, int]:
    """The number of each class in ``there``. ``known``: the numbers of classes in the result to
    which the job adds records; these numbers stay the same. None if the job makes a new result.
    ``given``: the numbers in the class map ``map_name``; None if there is no map, and classes are
    numbered by sorted names. ``InputError`` if ``known`` and ``given`` contradict each other, or
    leave out a class."""
    if given is None and known is None:
        return {name: at for at, name in enumerate(sorted(there))}
    numbers = known if given is None else given
    assert numbers is not None
    unknown = [readable(each) for each in sorted(there) if each not in numbers]
    if unknown and given is not None:
        count = format_count(len(unknown), "class is", "classes are")
        raise InputError(f"{count} not in {map_name}: {first_few(unknown)}")
    if unknown:
        raise InputError(
            f"{format_count(len(unknown), 'class is', 'classes are')} not in the result to "
            f"which records are added: {first_few(unknown)}",
            hint="they have no numbers yet: ingest all files again, or write a spec with amend and "
            "an ingest.class_map that has every class",
        )
    if known is not None and given is not None:
        _refuse_other_numbers(map_name, given, known)
    merged = {**(known or {}), **{name: numbers[name] for name in there}}
    return dict(sorted(merged.items(), key=lambda each: (each[1], each[0])))


def _refuse_other_numbers(
    map_name: str, given: Mapping[bytes, int], known: Mapping[bytes, int]
) -> None:
    hint = "an append keeps the numbers of the classes that the result has"
    for name, number in known.items():
        if given.get(name, number) != number:
            text = f"{map_name} gives the class {readable(name)} the number {given[name]:,}"
            raise InputError(f"{text}, and the result has the number {number:,}", hint=hint)
    absent = {number: name for name, number in known.items() if name not in given}
    for name, number in given.items():
        if number in absent:
            raise InputError(
                f"{map_name} gives {readable(name)} the number {number:,}, which "
                f"{readable(absent[number])} has in the result",
                hint=hint,
            )


def labels_of(name: str, data: bytes) -> Sequence[int]:
    """The numbers of a list like ImageNet's ground truth, one on each line."""
    found = []
    for number, line in enumerate(_text(name, data).splitlines(), 1):
        if not line.strip():
            continue
        found.append(_number(f"{name}, line {number:,}", line.strip()))
    return found


def _of_json(name: str, text: str) -> list[tuple[str, int]]:
    if len(text) > CELL_BYTES_MAX:
        shown = f"{name} has {len(text):,} characters of JSON, more than {CELL_BYTES_MAX:,}"
        raise InputError(shown, hint="write lines of name,number")
    try:
        content = json.loads(text, object_pairs_hook=list)  # a list keeps repeated names
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name} is no JSON: {error}") from None
    if all(isinstance(each, str) for each in content):
        return [(each, number) for number, each in enumerate(content)]
    if all(isinstance(each, tuple) and type(each[1]) is int for each in content):
        return [(each, _bounded(f"{name}: {each!a}", number)) for each, number in content]
    raise InputError(f"{name} is no class map", hint='write {"cat": 0, "dog": 1} or ["cat", "dog"]')


def _of_lines(name: str, text: str) -> list[tuple[str, int]]:
    try:
        rows = [row for row in csv.reader(io.StringIO(text, newline=""), strict=True) if row]
    except csv.Error as error:
        raise InputError(f"{name}: {error}") from None
    if all(len(row) == 1 for row in rows):
        return [(row[0], number) for number, row in enumerate(rows)]
    found = []
    for number, row in enumerate(rows, 1):
        if len(row) != 2:
            raise InputError(f"{name}, line {number:,} is not a name and a number")
        if number == 1 and not row[1].strip().lstrip("-").isdecimal():
            continue  # the names of the columns
        found.append((row[0], _number(f"{name}, line {number:,}", row[1].strip())))
    return found


def _number(where: str, text: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 19):
        raise InputError(f"{where}: {text[:40]!r} is no number")
    return int(text)


def _bounded(where: str, number: int) -> int:
    if abs(number) >= NUMBER_END:
        raise InputError(f"{where} has a number of more than 18 digits")
    return number


def _text(name: str, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{name} is not UTF-8, at byte {error.start:,}") from None


# --------------------------------------------------------------------------------------------------
# Rows of small tables that describe files: CSV, JSON lines, Parquet.
#
# They are files that dsort did not write: an invalid table is an ``InputError`` that names the
# file and its line.


TABLE_SUFFIXES = (".csv", ".jsonl", ".parquet")
CELL_BYTES_MAX = 16 << 20
"""The largest cell of CSV, and the largest text that is decoded as JSON at once, because lists take
20 times the memory of their text."""
EXPANDED_BYTES_MAX = 4 << 30
"""The maximum declared size of the columns of a Parquet table."""

Row = dict[str, object]


def rows_of(name: str, data: bytes) -> Iterator[tuple[str, Row]]:
    """For each row of the table ``name``: (its place in words, its columns). ``InputError`` for an
    invalid row."""
    if name.endswith(".parquet"):
        return _parquet_rows(name, data)
    text = _text(name, data)
    if name.endswith((".jsonl", ".ndjson")):
        return _json_rows(name, text)
    if name.endswith((".csv", ".tsv")):
        return _csv_rows(name, text)
    raise InputError(f"{name} is no table that dsort can read", hint="use .csv, .jsonl or .parquet")


def name_bytes(where: str, name: str) -> bytes:
    """The bytes of a name in a table or a list. ``InputError`` with ``where`` if the name cannot be
    encoded, because JSON can contain half of a surrogate pair."""
    try:
        return name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InputError(f"{where} names {name!a}, which is no text") from None


def json_payload(where: str, values: Row) -> bytes:
    """``values`` as the JSON of a member. ``InputError`` with ``where``, the place of the
    values."""
    try:
        return json.dumps(values, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{where} cannot be written as JSON: {error}") from None


def _json_rows(name: str, text: str) -> Iterator[tuple[str, Row]]:
    # Not splitlines: JSON may have line separators of Unicode within texts.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        where = f"{name}, line {number:,}"
        if len(line) > CELL_BYTES_MAX:
            raise InputError(f"{where} has {len(line):,} characters, more than {CELL_BYTES_MAX:,}")
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where} is no JSON: {error}") from None
        if not isinstance(row, dict):
            raise InputError(f"{where} is no JSON object")
        yield where, row


def _csv_rows(name: str, text: str) -> Iterator[tuple[str, Row]]:
    # This sets the limit for the whole process, because ``csv`` has no other setting.
    csv.field_size_limit(CELL_BYTES_MAX)
    delimiter = "\t" if name.endswith(".tsv") else ","
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        columns = next(reader, [])
        if len({*columns}) != len(columns):
            raise InputError(f"{name} has two columns of one name")
        for values in reader:
            where = f"{name}, line {reader.line_num:,}"
            if not values:
                continue
            if len(values) != len(columns):
                raise InputError(f"{where} has {len(values)} cells, and not {len(columns)}")
            yield where, dict(zip(columns, values, strict=True))
    except csv.Error as error:
        raise InputError(f"{name}, line {reader.line_num:,}: {error}") from None


def _parquet_rows(name: str, data: bytes) -> Iterator[tuple[str, Row]]:
    import pyarrow as pa  # takes 0.1 s to load, and few tables are Parquet
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        groups = range(file.metadata.num_row_groups)
        expanded = sum(file.metadata.row_group(at).total_byte_size for at in groups)
        if expanded > EXPANDED_BYTES_MAX:
            raise InputError(f"{name} declares that its columns take {expanded:,} bytes")
        number = 0
        for batch in file.iter_batches():
            for row in batch.to_pylist():
                yield f"{name}, row {number:,}", row
                number += 1
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{name} cannot be read as Parquet: {error}") from None


UNLISTED = "unlisted"
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
    """Add the members that tables among ``files`` make of these files. ``files``: by path, (size,
    stamp) of each file. ``read``: returns the bytes of the file with a path. ``InputError`` names a
    row that is invalid; files in no row are left out as ``UNLISTED``."""
    tables = sorted(filter(is_metadata, files))
    if not tables:
        raise MissingShardError(
            f"there is no metadata{', metadata'.join(TABLE_SUFFIXES)} among the files",
            hint="ingest.layout: folders and files need no metadata",
        )
    named: dict[bytes, str] = {}
    for table in tables:
        name = table.decode(*NAMES)
        directory = name.rpartition("/")[0]
        for where, row in rows_of(name, read(table)):
            _add_row(members, rules, number, files, directory, where, row, named)
    for path in files:
        if path not in named and not is_metadata(path):
            members.leave_out(UNLISTED, path.decode(*NAMES))


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
            raise MissingShardError(f"{where} names {text}, which does not exist")
        if path in named:
            raise DuplicateError(f"{where} names {text}, as does {named[path]}")
        named[path] = where
        found = rules.member_of(path)
        if isinstance(found, str):
            why = UNUSABLE.get(found, found)
            raise InputError(f"{where} names {text}, which cannot be a member of a record: {why}")
        key = found[0] if key is None else key
        size, stamp = files[path]
        extension = name_bytes(where, prefix) + found[1]
        members.add(key, extension, size, number, path, stamp)
    if key is None:
        raise InputError(f"{where} names no file", hint="a table has a column file_name")
    if rest:
        members.add_text(key, b"json", json_payload(where, rest))


def _file_names(where: str, row: Row, rest: Row) -> Iterator[tuple[str, str]]:
    """For each file of a row: (the text before its extension, the file). The columns that name
    files are removed from ``rest``. The first file gives the record its key."""
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
