"""From the files of the inputs to the members that they become: :func:`list_members`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from dsort.data.columns import BytesColumn
from dsort.data.tally import Tally
from dsort.errors import DuplicateError, InputError, MissingShardError
from dsort.ingest.listing import LITERAL, Listing, stamp_of
from dsort.ingest.member_names import BETWEEN, HIDDEN, OTHER, UNUSABLE, NameRules
from dsort.naming.names import first_few, is_internal, readable
from dsort.naming.patterns import KeyPattern, glob_prefix, glob_regex
from dsort.spec.ingest import Ingest
from dsort.spec.inputs import Source
from dsort.storage.bucket import Bucket, ObjectInfo
from dsort.storage.directory.bucket import LocalBucket

__all__ = ["list_members"]

_NAMES = ("utf-8", "surrogateescape")
NAMES_A_CHECK = 10_000
NAMES_KEPT_MAX = 1_000
_KINDS = {HIDDEN: "hidden_files", OTHER: "other_files", UNUSABLE: "unusable_files"}


@dataclass(slots=True)
class _Members:
    """Members as they are found: columns, and what is left out."""

    names: list[bytes] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    paths: list[bytes] = field(default_factory=list)
    stamps: list[int] = field(default_factory=list)
    left_out: dict[str, list[str]] = field(default_factory=dict)

    def add(self, name: bytes, size: int, number: int, path: bytes, stamp: int) -> None:
        self.names.append(name)
        self.sizes.append(size)
        self.inputs.append(number)
        self.paths.append(path)
        self.stamps.append(stamp)

    def leave_out(self, why: str, name: str) -> None:
        self.left_out.setdefault(why, []).append(name)


def list_members(
    rules: Ingest,
    sources: Sequence[Source],
    buckets: Sequence[Bucket],
    tally: Tally,
    *,
    check: Callable[[], None] = lambda: None,
) -> Listing:
    """The members that the files of ``sources`` become, each file one of them, or counted as left
    out. ``InputError`` that names files which cannot be members, ``DuplicateError`` for two that
    would be the same one. ``check`` is called again and again, and may raise."""
    members = _Members()
    for number, (source, bucket) in enumerate(zip(sources, buckets, strict=True)):
        _add_files(members, rules, number, source, bucket, check)
    _tell_left_out(members, rules, tally)
    if not members.names:
        raise MissingShardError(
            f"no file was found in {', '.join(bucket.uri for bucket in buckets)} that could go in",
            hint="check input_format and ingest; `dsort ls` shows what is there",
        )
    if rules.layout == "folders":
        _add_classes(members)
    return _listed(members)


def _add_files(
    members: _Members,
    rules: Ingest,
    number: int,
    source: Source,
    bucket: Bucket,
    check: Callable[[], None],
) -> None:
    before = len(members.names)
    prefix = rules.members.get(source.name, "").encode(*_NAMES)
    prefix += b"." * bool(prefix)
    names = NameRules(
        key=rules.key,
        pattern=None if rules.key_pattern is None else KeyPattern(rules.key_pattern),
        at_first_dot=rules.parts_at_first_dot,
        extensions=[each.encode(*_NAMES) for each in rules.extensions],
        needs_directory=rules.layout == "folders",
    )
    member_of, add = names.member_of, members.add
    for at, (name, info) in enumerate(_files(source, bucket)):
        if at % NAMES_A_CHECK == 0:
            check()
        path = name.encode(*_NAMES)
        found = UNUSABLE if info is None else member_of(path)
        if isinstance(found, str) or info is None:
            members.leave_out(str(found), source.shard_name(name))
            continue
        key, extension = found
        add(key + BETWEEN + prefix + extension, info.size_bytes, number, path, stamp_of(info))
    if len(members.names) == before and source.name:
        raise MissingShardError(
            f"no file of the input {source.name} was found in {bucket.uri} that could go in",
            hint="check its input_format; `dsort ls` shows what is there",
        )


def _files(source: Source, bucket: Bucket) -> Iterator[tuple[str, ObjectInfo | None]]:
    """(name, info) of what an input names; None for what is no file."""
    wanted = source.format
    if wanted.objnames is not None:
        found = bucket.stat_many(wanted.objnames)
        missing = [name for name in wanted.objnames if name not in found]
        if missing:
            raise MissingShardError(
                f"{len(missing):,} files are missing from {bucket.uri}: {first_few(missing)}",
                hint=f"check {source.path}input_format.objnames",
            )
        yield from ((name, found[name]) for name in wanted.objnames)
        return
    prefix, pattern = wanted.prefix or "", None
    if wanted.glob is not None:
        prefix, pattern = glob_prefix(wanted.glob), glob_regex(wanted.glob)
    for name, info in _listed_names(bucket, prefix):
        if pattern is not None and not pattern.fullmatch(name):
            continue
        if not is_internal(name) and not (name.endswith("/") and info and not info.size_bytes):
            yield name, info


def _listed_names(bucket: Bucket, prefix: str) -> Iterator[tuple[str, ObjectInfo | None]]:
    if isinstance(bucket, LocalBucket):
        return bucket.list_all(prefix)
    return ((info.name, info) for info in bucket.list(prefix))


def _tell_left_out(members: _Members, rules: Ingest, tally: Tally) -> None:
    reactions = {HIDDEN: rules.hidden, UNUSABLE: rules.unusable}
    words = {HIDDEN: "are hidden", UNUSABLE: "can be no members of records"}
    for why, names in sorted(members.left_out.items()):
        if reactions.get(why) == "abort":
            raise InputError(
                f"{len(names):,} files {words[why]}: {first_few([_shown(each) for each in names])}",
                hint=f"ingest.{why}: drop leaves them out, and counts them"
                + ("; a member needs a name with an extension" if why == UNUSABLE else ""),
            )
        tally.add(_KINDS[why], len(names), map(_shown, names[:NAMES_KEPT_MAX]))


def _shown(name: str) -> str:
    return readable(name.encode(*_NAMES))


def _add_classes(members: _Members) -> None:
    """A member ``.cls`` for each record: the number of its class, the first part of the path."""
    of_record: dict[bytes, bytes] = {}
    for name, path in zip(members.names, members.paths, strict=True):
        key, _, _ = name.partition(BETWEEN)
        own = path[: path.find(b"/")]
        other = of_record.setdefault(key, own)
        if other != own:
            raise DuplicateError(
                f"files of the classes {readable(other)} and {readable(own)} have the key "
                f"{readable(key)}",
                hint="use ingest.key: path",
            )
    numbers = {name: at for at, name in enumerate(sorted({*of_record.values()}))}
    for key, own in of_record.items():
        text = b"%d" % numbers[own]
        members.add(key + BETWEEN + b"cls", len(text), LITERAL, text, 0)


def _listed(members: _Members) -> Listing:
    """The listing of the members, sorted by key and extension."""
    names = members.names
    order = sorted(range(len(names)), key=names.__getitem__)
    ordered = [names[row] for row in order]
    _refuse_alike(members, ordered, order)
    keys = [name.partition(BETWEEN)[0] for name in ordered]
    records = [0, *(row for row, (a, b) in enumerate(pairwise(keys), 1) if a != b)]
    rows = np.array(order, np.int64)
    return Listing.of(
        names=BytesColumn.of([name.replace(BETWEEN, b".", 1) for name in ordered]),
        sizes=np.array(members.sizes, np.int64)[rows],
        inputs=np.array(members.inputs, np.int32)[rows],
        paths=BytesColumn.of([members.paths[row] for row in order]),
        stamps=np.array(members.stamps, np.uint64)[rows],
        records=np.array(records, np.int64),
    )


def _refuse_alike(members: _Members, ordered: list[bytes], order: list[int]) -> None:
    """``DuplicateError`` for two files that would be one member, also to readers that take
    extensions for the same that differ in case."""
    for at, (name, other) in enumerate(pairwise(ordered)):
        if name == other:
            _refuse(members, order[at], order[at + 1], "would be the same member")
    extensions = {name[name.find(BETWEEN) + 1 :] for name in ordered}
    if len({each.lower() for each in extensions}) == len(extensions):
        return
    seen: dict[bytes, int] = {}
    for row, name in zip(order, ordered, strict=True):
        key, _, extension = name.partition(BETWEEN)
        other_row = seen.setdefault(key + BETWEEN + extension.lower(), row)
        if other_row != row:
            what = "would be the same member to readers that read extensions in lower case"
            _refuse(members, other_row, row, what)


def _refuse(members: _Members, one: int, other: int, what: str) -> None:
    first, second = (_source_of(members, row) for row in (one, other))
    name = readable(members.names[other].replace(BETWEEN, b".", 1))
    raise DuplicateError(
        f"{first} and {second} {what}, {name}",
        hint="rename one of them, use ingest.key: path, or say with ingest.members what stands "
        "before the extensions of an input",
    )


def _source_of(members: _Members, row: int) -> str:
    if members.inputs[row] == LITERAL:
        return f"the {readable(members.names[row].partition(BETWEEN)[2])} that is made"
    return readable(members.paths[row])
