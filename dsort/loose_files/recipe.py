"""Recipes: lines with a member's name and its source, as tarp's ``create`` reads them.

::

    000001.jpg images/dog.jpg
    000001.cls text:3

A source is an object of the input (``name/object`` if there are several inputs), the URL of an
object that is in an input, ``text:`` and the content itself, or ``pipe:`` and a program that writes
the content.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from dsort.errors import InputError, TransformError
from dsort.loose_files.found import named_files
from dsort.loose_files.member_names import NameRules
from dsort.loose_files.members import Members
from dsort.naming.names import is_internal, readable
from dsort.spec.inputs import Source
from dsort.storage.bucket import Bucket

__all__ = ["WrittenBy", "add_recipe"]

_NAMES = ("utf-8", "surrogateescape")
_TEXT, _PIPE = "text:", "pipe:"

Line = tuple[bytes, bytes, str]
"""Key, extension, and the object."""
WrittenBy = Callable[[Sequence[tuple[str, str]]], Sequence[bytes]]
"""Returns the output of programs. The argument has, for each program, the place of its line (for
messages) and the words of its command."""


def add_recipe(
    members: Members,
    name: str,
    data: bytes,
    sources: Sequence[Source],
    buckets: Sequence[Bucket],
    written_by: WrittenBy | None,
) -> None:
    """Add the members in the recipe ``name``. ``written_by``: runs programs; None: programs may not
    be run. ``InputError`` names a line that is invalid, ``MissingShardError`` objects that do not
    exist."""
    wanted: list[list[Line]] = [[] for _ in sources]
    programs: list[tuple[bytes, bytes, str, str]] = []
    for at, line in enumerate(data.decode(*_NAMES).split("\n"), 1):
        where, line = f"{name}, line {at:,}", line.removesuffix("\r")
        if not line.strip():
            continue
        member, source = (*line.split(None, 1), "")[:2]
        found = NameRules().member_of(member.encode(*_NAMES))
        if isinstance(found, str):
            shown = readable(member.encode(*_NAMES))
            raise InputError(f"{where}: {shown} can be no member of a record", hint="a/1.jpg")
        if source.startswith(_TEXT):
            members.add_text(*found, source.removeprefix(_TEXT).encode(*_NAMES))
            continue
        if source.startswith(_PIPE):
            programs.append((*found, where, source.removeprefix(_PIPE)))
            continue
        number, path = _object(where, source, sources)
        wanted[number].append((*found, path))
    if programs and written_by is None:
        raise TransformError(
            f"{programs[0][2]}: pipe: names a program, and none is run",
            hint="ingest: {pipes: true} in a spec of your own machine lets it; or write to a file "
            "what it prints",
        )
    if programs and written_by is not None:
        texts = written_by([(where, text) for _, _, where, text in programs])
        for (key, extension, _, _), text in zip(programs, texts, strict=True):
            members.add_text(key, extension, text)
    for number, lines in enumerate(wanted):
        _add_objects(members, number, lines, sources[number], buckets[number])


def _add_objects(
    members: Members, number: int, lines: Sequence[Line], source: Source, bucket: Bucket
) -> None:
    names = tuple(dict.fromkeys(path for _, _, path in lines))
    there: Mapping[bytes, tuple[int, int]] = {
        path: (size, stamp) for path, size, stamp in named_files(source, bucket, names)
    }
    for key, extension, name in lines:
        path = name.encode(*_NAMES)
        size, stamp = there[path]
        members.add(key, extension, size, number, path, stamp)


def _object(where: str, text: str, sources: Sequence[Source]) -> tuple[int, str]:
    """(the input, the object in its bucket) to which a source refers."""
    if not text:
        raise InputError(f"{where} has no source", hint="000001.jpg images/dog.jpg")
    number, path = 0, text
    if "://" in text:
        starts = [f"{source.bucket.uri.rstrip('/')}/" for source in sources]
        fitting = [at for at, start in enumerate(starts) if text.startswith(start)]
        if not fitting:
            raise InputError(
                f"{where}: {text} is in none of the inputs", hint="name its bucket in inputs"
            )
        number = max(fitting, key=lambda at: len(starts[at]))
        path = text.removeprefix(starts[number])
    elif sources[0].name:
        names = [source.name for source in sources]
        name, _, path = text.partition("/")
        if name not in names:
            raise InputError(f"{where}: {text} is in none of the inputs", hint="write NAME/OBJECT")
        number = names.index(name)
    if "\0" in path or is_internal(path) or {"", ".", ".."} & {*path.split("/")}:
        shown = readable(path.encode(*_NAMES))
        raise InputError(f"{where}: {shown} can be no object of a bucket")
    return number, path
