"""Makes members from the files of the inputs: :func:`list_members`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from dsort.data.tally import Tally
from dsort.errors import DuplicateError, InputError, MissingShardError, TransformError
from dsort.loose_files.listing import NAMES, Listing
from dsort.loose_files.members import (
    CLUTTER,
    HIDDEN,
    NO_FILE,
    NO_ORDINARY_FILE,
    OTHER,
    UNUSABLE,
    Members,
    NameRules,
    base_of,
    found_files,
    named_files,
)
from dsort.loose_files.metadata import (
    UNLISTED,
    add_described,
    class_map_of,
    is_metadata,
    json_payload,
    labels_of,
    name_bytes,
    numbers_of,
    rows_of,
)
from dsort.naming.names import first_few, is_internal, readable
from dsort.naming.patterns import FileLocation, KeyPattern
from dsort.sizes import format_count
from dsort.spec.inputs import Source
from dsort.spec.more_inputs import Ingest, Table
from dsort.storage.bucket import Bucket
from dsort.storage.small_objects import read_small

# --------------------------------------------------------------------------------------------------
# Recipes: lines with a member's name and its source, as tarp's ``create`` reads them:
# ``000001.jpg images/dog.jpg``, ``000001.cls text:3``.
#
# A source is an object of the input (``name/object`` if there are several inputs), the URL of an
# object in an input, ``text:`` with the content itself, or ``pipe:`` with a program that writes the
# content.


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
    """Add the members in the recipe ``name``. ``written_by``: runs programs; None: programs must
    not be run. ``InputError`` names an invalid line, ``MissingShardError`` names objects that do
    not exist."""
    wanted: list[list[Line]] = [[] for _ in sources]
    programs: list[tuple[bytes, bytes, str, str]] = []
    for at, line in enumerate(data.decode(*NAMES).split("\n"), 1):
        where, line = f"{name}, line {at:,}", line.removesuffix("\r")
        if not line.strip():
            continue
        member, source = (*line.split(None, 1), "")[:2]
        found = NameRules().member_of(member.encode(*NAMES))
        if isinstance(found, str):
            shown = readable(member.encode(*NAMES))
            raise InputError(f"{where}: {shown} cannot be a member of a record", hint="a/1.jpg")
        if source.startswith(_TEXT):
            members.add_text(*found, source.removeprefix(_TEXT).encode(*NAMES))
            continue
        if source.startswith(_PIPE):
            programs.append((*found, where, source.removeprefix(_PIPE)))
            continue
        number, path = _object(where, source, sources)
        wanted[number].append((*found, path))
    if programs and written_by is None:
        raise TransformError(
            f"{programs[0][2]}: pipe: names a program, and this job may run no programs",
            hint="ingest: {pipes: true} in a spec of your own machine allows programs; or "
            "write the output of the program to a file",
        )
    if programs and written_by is not None:
        texts = written_by([(where, text) for _, _, where, text in programs])
        for (key, extension, _, _), text in zip(programs, texts, strict=True):
            members.add_text(key, extension, text)
    for number, lines in enumerate(wanted):
        _add_objects(members, number, lines, buckets[number])


def _add_objects(members: Members, number: int, lines: Sequence[Line], bucket: Bucket) -> None:
    names = tuple(dict.fromkeys(path for _, _, path in lines))
    there: Mapping[bytes, tuple[int, int]] = {
        path: (size, stamp) for path, size, stamp in named_files(bucket, names)
    }
    for key, extension, name in lines:
        path = name.encode(*NAMES)
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
        shown = readable(path.encode(*NAMES))
        raise InputError(f"{where}: {shown} cannot be an object of a bucket")
    return number, path


NAMES_A_CHECK = 10_000
NAMES_KEPT_MAX = 1_000
TABLE_BYTES_MAX = 1 << 30
_KINDS = {
    HIDDEN: "hidden_files",
    OTHER: "other_files",
    CLUTTER: "clutter_files",
    **dict.fromkeys(UNUSABLE, "unusable_files"),
    UNLISTED: "unlisted_files",
}


Read = Callable[[FileLocation], bytes]
"""Returns the bytes at a path, a URL, or a place in an object store."""


def list_members(
    rules: Ingest,
    sources: Sequence[Source],
    buckets: Sequence[Bucket],
    tally: Tally,
    read: Read,
    *,
    known_classes: Mapping[bytes, int] | None,
    check: Callable[[], None],
    written_by: WrittenBy | None,
) -> Listing:
    """The members that are made of the files of ``sources``. Each file becomes one member, or is
    counted as left out. ``InputError`` names files that cannot be members, ``DuplicateError`` names
    two files that would be one member. ``read``: reads the files that ``rules`` name, such as a
    table. ``known_classes``: the number of each class of a result to which these members are added.
    ``check`` is called repeatedly, and may raise an error. ``written_by``: runs the programs of a
    recipe; None: programs are not run."""
    members = Members()
    if rules.recipe is not None:
        add_recipe(members, rules.recipe, read(rules.recipe), sources, buckets, written_by)
    else:
        for number, (source, bucket) in enumerate(zip(sources, buckets, strict=True)):
            _add_files(members, rules, number, source, bucket, check)
    _tell_left_out(members, rules, tally)
    if not len(members):
        where, other = ", ".join(bucket.uri for bucket in buckets), members.left_out.get(OTHER)
        if other is not None:
            has = format_count(other[0], "file has", "files have")
            shown = first_few([_shown(each) for each in other[1]])
            reason = f"{has} another extension, or another name than key_pattern: {shown}"
            hint = "check ingest.extensions (--ext) and ingest.key_pattern"
            raise MissingShardError(f"no file in {where} becomes a member: {reason}", hint=hint)
        raise MissingShardError(
            f"no file in {where} can become a member",
            hint="check input_format and ingest; `dsort ls` shows what is there",
        )
    if rules.layout == "folders":
        _add_classes(members, rules, read, known_classes)
    if rules.labels is not None:
        _add_labels(members, rules.labels, rules.labels_from, read)
    if rules.table is not None:
        _add_table(members, rules.table, read, tally)
    return members.listed()


def _add_files(
    members: Members,
    rules: Ingest,
    number: int,
    source: Source,
    bucket: Bucket,
    check: Callable[[], None],
) -> None:
    before = len(members)
    prefix = rules.members.get(source.name, "").encode(*NAMES)
    prefix += b"." * bool(prefix)
    base = 0 if rules.archives else base_of(source)
    names = NameRules(
        key=rules.key,
        pattern=None if rules.key_pattern is None else KeyPattern(rules.key_pattern),
        at_first_dot=rules.parts_at_first_dot,
        extensions=[each.encode(*NAMES) for each in rules.extensions],
        directory_from=base if rules.layout == "folders" else None,
        keeps_clutter=rules.layout == "metadata",
    )
    member_of, add = names.member_of, members.add
    is_class = rules.layout == "folders"
    is_described = rules.layout == "metadata"
    described: dict[bytes, tuple[int, int]] = {}
    files = found_files(source, bucket, archives=rules.archives)
    for at, (path, size, stamp, place, start) in enumerate(files):
        if at % NAMES_A_CHECK == 0:
            check()
        found = NO_ORDINARY_FILE if size == NO_FILE else member_of(path)
        if is_described and size != NO_FILE and (is_metadata(path) or isinstance(found, tuple)):
            described[path] = (size, stamp)
        elif isinstance(found, str):
            members.leave_out(found, source.shard_name(path.decode(*NAMES)))
        else:
            own = path[base : path.find(b"/", base)] if is_class else None
            add(found[0], prefix + found[1], size, number, place, stamp, start, own)
    if is_described:
        add_described(members, names, number, described, partial(_table_in, bucket))
    if len(members) == before and source.name:
        raise MissingShardError(
            f"no file of the input {source.name} in {bucket.uri} can become a member",
            hint="check its input_format; `dsort ls` shows what is there",
        )


def _table_in(bucket: Bucket, path: bytes) -> bytes:
    return read_small(bucket, path.decode(*NAMES), bytes_max=TABLE_BYTES_MAX)


def _tell_left_out(members: Members, rules: Ingest, tally: Tally) -> None:
    left_out = sorted(members.left_out.items())
    if rules.unusable == "abort":
        _refuse_unusable({why: found for why, found in left_out if why in UNUSABLE})
    refused = {HIDDEN: ("hidden", rules.hidden), UNLISTED: ("unusable", rules.unusable)}
    words = {
        HIDDEN: ("file is hidden", "files are hidden"),
        UNLISTED: ("file is in no row of metadata", "files are in no row of metadata"),
    }
    for why, (count, names) in left_out:
        field, reaction = refused.get(why, ("", "drop"))
        if reaction == "abort":
            shown = first_few([_shown(each) for each in names])
            raise InputError(
                f"{format_count(count, *words[why])}: {shown}",
                hint=f"ingest.{field}: drop leaves them out, and counts them",
            )
        tally.add(_KINDS[why], count, map(_shown, names))


def _refuse_unusable(left_out: Mapping[str, tuple[int, Sequence[str]]]) -> None:
    """``InputError`` if there are files that cannot be members, with the reason for each."""
    if not left_out:
        return
    total = sum(count for count, _ in left_out.values())
    each_why = [
        f"{first_few([_shown(name) for name in names])} ({UNUSABLE[why]})"
        for why, (_, names) in left_out.items()
    ]
    what = format_count(
        total, "file cannot be a member of a record", "files cannot be members of records"
    )
    raise InputError(
        f"{what}: {'; '.join(each_why)}",
        hint="ingest.unusable: drop leaves them out, and counts them",
    )


def _shown(name: str) -> str:
    return readable(name.encode(*NAMES))


def _add_classes(
    members: Members, rules: Ingest, read: Read, known: Mapping[bytes, int] | None
) -> None:
    """Add a member ``.cls`` to each record: the number of its class. The class is the first
    directory in its path after the prefix that all paths of the input share."""
    given = None
    if rules.class_map is not None:
        given = class_map_of(rules.class_map, read(rules.class_map))
    numbers = numbers_of(members.class_ids, rules.class_map or "", given, known)
    members.class_numbers = numbers
    for key, own in members.classes():
        members.add_text(key, b"cls", b"%d" % numbers[own])


def _add_labels(members: Members, location: FileLocation, labels_from: int, read: Read) -> None:
    """Add a member ``.cls`` to each record: the number in the list ``location`` at the position of
    the record."""
    labels, keys = labels_of(location, read(location)), members.record_keys()
    if len(labels) != len(keys):
        raise InputError(
            f"{location} has {len(labels):,} labels, and there are {len(keys):,} records",
            hint="it needs one label a line, for the records in the order of their keys",
        )
    for key, label in zip(keys, labels, strict=True):
        members.add_text(key, b"cls", b"%d" % (label - labels_from))


def _add_table(members: Members, table: Table, read: Read, tally: Tally) -> None:
    """Add a member ``.json`` to each record that has a row in the table."""
    records: dict[bytes, list[bytes]] = {}
    for key in members.record_keys():
        own = key if table.match == "key" else key[key.rfind(b"/") + 1 :]
        records.setdefault(own, []).append(key)
    seen: dict[bytes, str] = {}
    for where, row in rows_of(table.file, read(table.file)):
        if table.key not in row:
            raise InputError(f"{where} has no column {table.key}", hint="check ingest.table.key")
        value = row.pop(table.key)
        if not isinstance(value, (str, int)) or isinstance(value, bool):
            raise InputError(f"{where}: {table.key} is neither text nor a whole number")
        own = name_bytes(where, str(value))
        if own in seen:
            raise DuplicateError(f"{where} describes {value}, as does {seen[own]}")
        seen[own] = where
        if own not in records:
            tally.add("rows_without_record", 1, [f"{where}: {value}"])
            continue
        text = json_payload(where, row)
        for key in records[own]:
            members.add_text(key, b"json", text)
    without = [readable(key) for own, keys in records.items() if own not in seen for key in keys]
    tally.add("records_without_row", len(without), without[:NAMES_KEPT_MAX])
