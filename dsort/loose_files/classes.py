"""Class maps and lists of labels: they have the number of a class, or of a record.

They are files that dsort did not write: an invalid one is an ``InputError`` that names the file and
its line.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Collection, Mapping, Sequence

from dsort.errors import InputError
from dsort.loose_files.tables import name_bytes
from dsort.naming.names import first_few, readable
from dsort.sizes import format_count

__all__ = ["class_map_of", "labels_of", "numbers_of"]

NUMBER_END = 10**18


def class_map_of(name: str, data: bytes) -> Mapping[bytes, int]:
    """The number of each class. A JSON object of numbers or list of names, or lines of
    ``name,number`` or of names only."""
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
    """The number of each class: of the classes ``there``, and of the classes ``known`` in a result
    that the job adds to, which keep their numbers. ``given``: the numbers in the class map
    ``map_name``; None if there is no map, and classes are numbered by sorted names. ``InputError``
    if these contradict each other, or leave out a class."""
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
            f"{format_count(len(unknown), 'class is', 'classes are')} not in the result that is "
            f"added to: {first_few(unknown)}",
            hint="no class has a number that would be theirs: ingest all again, or write a spec "
            "with amend and an ingest.class_map that has every class",
        )
    if known is not None and given is not None:
        _refuse_other_numbers(map_name, given, known)
    merged = {**(known or {}), **{name: numbers[name] for name in there}}
    return dict(sorted(merged.items(), key=lambda each: (each[1], each[0])))


def _refuse_other_numbers(
    map_name: str, given: Mapping[bytes, int], known: Mapping[bytes, int]
) -> None:
    hint = "classes of a result that is added to keep their numbers"
    for name, number in known.items():
        if given.get(name, number) != number:
            text = f"{map_name} gives the class {readable(name)} the number {given[name]:,}"
            raise InputError(f"{text}, and the result that is added to has {number:,}", hint=hint)
    absent = {number: name for name, number in known.items() if name not in given}
    for name, number in given.items():
        if number in absent:
            raise InputError(
                f"{map_name} gives {readable(name)} the number {number:,}, which is that of "
                f"{readable(absent[number])} in the result that is added to",
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
            raise InputError(f"{name}, line {number:,} is no name and number")
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
