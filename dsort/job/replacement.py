"""What a job replaces is kept until its manifest is written, and gets its name back if that never
comes.

Before the first output has its name, all objects that have such names are kept under
``.dsort/<job>/replaced/<n>`` (see ``Bucket.keep_aside``), and then ``kept.json`` there says so. As
long as it is missing, nothing was replaced. So wherever a job dies, whoever finds what is left of
it knows what to put back: ``dsort gc``, or a resumed job that fails.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dsort.data.json_rows import Rows, json_bytes
from dsort.errors import ObjectNotFoundError, StorageError
from dsort.job.layout import replaced_list_name, replaced_prefix, staged_prefix
from dsort.naming.names import check_output_name
from dsort.storage.bucket import COPY, Bucket, ObjectInfo
from dsort.storage.output_buckets import place_of
from dsort.storage.staging import Staged

__all__ = [
    "Kept",
    "PutBack",
    "each_at_once",
    "keep_replaced",
    "put_back",
    "read_kept",
]

AT_ONCE_MAX = 16
A_TURN = 500
KEPT_VERSION = 1
KEPT_BYTES_MAX = 1 << 30
DIGITS_MAX = 18
_SHOWN_MAX = 3

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Kept:
    """What had the name of output ``number``. ``etag``: what it had when it was kept, "" if that
    is not known. ``receipt``: for ``Bucket.put_back``. ``published``: the receipt of the output."""

    number: int
    name: str
    etag: str
    receipt: str
    published: str


@dataclass(slots=True)
class PutBack:
    """What became of all that was kept. ``was_noted``: whether outputs had begun to get their
    names. ``kept``: all names that something was kept of. ``names``: those that have again what
    they had. ``lost``: why others do not, by name; it is kept in ``places``."""

    was_noted: bool = False
    kept: set[str] = field(default_factory=set)
    names: list[str] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)

    def lose(self, name: str, place: str, why: str) -> None:
        """It could not be put back, and stays where it is kept."""
        self.lost[name], self.places[name] = why, place

    def words(self, uri: str) -> str:
        """For the user; "" if nothing was replaced."""
        sentences = []
        if self.names and self.was_noted:
            several = f"{len(self.names):,} objects that it was to replace are"
            one = "1 object that it was to replace is"
            sentences.append(f"{several if len(self.names) > 1 else one} as before in {uri}")
        for name, why in list(self.lost.items())[:_SHOWN_MAX]:
            sentences.append(f"what {name} was is kept as {self.places[name]} in {uri}: {why}")
        if len(self.lost) > _SHOWN_MAX:
            sentences.append(f"so are {len(self.lost) - _SHOWN_MAX:,} others")
        return "; ".join(sentences)


def each_at_once(bucket: Bucket, things: Sequence[T], do: Callable[[T], None]) -> None:
    """``do`` each: several at once in an object store, one after the other in a directory."""
    if not bucket.seals_on_finish:
        for each in things:
            do(each)
        return
    with ThreadPoolExecutor(AT_ONCE_MAX) as threads:
        # Some at a time: what waits for a thread takes a kilobyte.
        for at in range(0, len(things), A_TURN):
            for _ in threads.map(do, things[at : at + A_TURN]):
                pass


# -- keeping -------------------------------------------------------------------------------------


def keep_replaced(
    bucket: Bucket,
    job_id: str,
    outputs: Sequence[Staged],
    *,
    between: Callable[[], None],
    replaceable: Collection[str] | None = None,
) -> set[str]:
    """Keep whatever has a name of ``outputs`` and is ``replaceable`` (None: all is); the names that
    may be replaced now.

    Where an earlier attempt has begun to give names, what it kept is kept on, and what it published
    is not kept. ``between``: called before each object, to end it.
    """
    noted = read_kept(bucket, job_id)
    rows = {row.number: row for row in _known(bucket, job_id, noted, _names(outputs))}
    ours: set[str] = set()
    if noted is not None:
        ours = bucket.published({each.token: (each.name, each.receipt) for each in outputs})
    waiting = [
        at
        for at, each in enumerate(outputs)
        if each.token not in ours and (replaceable is None or each.name in replaceable)
    ]
    if bucket.seals_on_finish:  # a listing is cheaper there than to ask for each
        there = bucket.stat_many([outputs[number].name for number in waiting])
        waiting = [number for number in waiting if outputs[number].name in there]
    receipts: dict[int, str] = {}

    def keep(number: int) -> None:
        between()
        token = f"{replaced_prefix(job_id)}{number}"
        receipts[number] = bucket.keep_aside(outputs[number].name, token)

    each_at_once(bucket, waiting, keep)
    kept = [number for number in waiting if receipts[number]]
    infos = bucket.stat_many([outputs[number].name for number in kept])
    for number in kept:
        output = outputs[number]
        etag = infos[output.name].etag if output.name in infos else ""
        rows[number] = Kept(number, output.name, etag, receipts[number], output.receipt)
    bucket.make_durable()
    _write_kept(bucket, job_id, [rows[number] for number in sorted(rows)])
    return {row.name for row in rows.values()}


def _names(outputs: Sequence[Staged]) -> list[str]:
    return [each.name for each in outputs]


def _known(
    bucket: Bucket, job_id: str, noted: list[Kept] | None, names: Sequence[str]
) -> list[Kept]:
    """What is kept: by what was ``noted``, else, of a job that died before, by what is there.
    ``names``, by number, are what the outputs are called."""
    if noted is not None:
        return noted
    prefix = replaced_prefix(job_id)
    numbers = [_number(found.name.removeprefix(prefix)) for found in bucket.list(prefix)]
    return [Kept(at, names[at], "", COPY, "") for at in numbers if 0 <= at < len(names)]


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX else -1


# -- putting back --------------------------------------------------------------------------------


def put_back(bucket: Bucket, job_id: str, names: Sequence[str]) -> PutBack:
    """Give all that was kept its name again, where the job's own output has it or nothing; where
    somebody else has written to a name, that stays. ``names``: of the outputs, as far as they are
    known. For who has the job, and has ended its attempts to give names."""
    noted = read_kept(bucket, job_id)
    rows = _known(bucket, job_id, noted, names)
    done = PutBack(was_noted=noted is not None, kept={row.name for row in rows})
    if not rows:
        return done
    prefix = replaced_prefix(job_id)
    kept = {info.name: info for info in bucket.list(prefix)}
    infos = bucket.stat_many([row.name for row in rows])
    published = {f"{staged_prefix(job_id)}{row.number}": (row.name, row.published) for row in rows}
    ours = bucket.published(published) if noted is not None else set()

    def give(row: Kept) -> None:
        info, token = infos.get(row.name), f"{prefix}{row.number}"
        is_ours = f"{staged_prefix(job_id)}{row.number}" in ours
        if info is not None and not is_ours:
            if noted is None or _is_as_before(row, info, kept.get(token)):
                done.names.append(row.name)
            elif row.receipt == COPY:  # a version stays in the store anyway
                done.lose(row.name, token, "somebody else has written to that name since")
            return
        try:
            bucket.put_back(token, row.name, receipt=row.receipt)
        except StorageError as error:
            done.lose(row.name, token, error.message)
        else:
            done.names.append(row.name)

    each_at_once(bucket, rows, give)
    bucket.make_durable()
    return done


def _is_as_before(row: Kept, info: ObjectInfo, kept: ObjectInfo | None) -> bool:
    """Whether what is there now, which is not the job's, is what was there before it."""
    if info.etag == row.etag:
        return True
    if kept is None:
        return row.receipt == COPY  # it was put back, and is not kept any more
    return info.etag == kept.etag


# -- what is noted -------------------------------------------------------------------------------


def read_kept(bucket: Bucket, job_id: str) -> list[Kept] | None:
    """What a job has noted that it keeps; None if it had not come so far, and replaced nothing.

    ``StorageError`` if that is damaged: then nobody can tell what was where.
    """
    name = replaced_list_name(job_id)
    try:
        if bucket.stat(name).size_bytes > KEPT_BYTES_MAX:
            raise _damaged(bucket, name, f"it is larger than {KEPT_BYTES_MAX:,} bytes")
        data = bucket.read(name)
    except ObjectNotFoundError:
        return None
    try:
        content = json.loads(data)
        if content["kept"] != KEPT_VERSION:
            raise ValueError(f"its format is {content['kept']!r}")
        return [_row(row) for row in content["objects"]]
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise _damaged(bucket, name, str(error)) from None


def _row(values: Any) -> Kept:
    row = Kept(*values)
    for value, kind in zip(values, (int, str, str, str, str), strict=True):
        if type(value) is not kind:
            raise ValueError(f"{value!r} is no {kind.__name__}")
    if row.number < 0:
        raise ValueError("a number is negative")
    check_output_name(place_of(row.name)[1])
    return row


def _write_kept(bucket: Bucket, job_id: str, rows: Iterable[Kept]) -> None:
    objects = Rows([row.number, row.name, row.etag, row.receipt, row.published] for row in rows)
    data = json_bytes({"kept": KEPT_VERSION, "objects": objects})
    bucket.write(replaced_list_name(job_id), data)


def _damaged(bucket: Bucket, name: str, why: str) -> StorageError:
    return StorageError(
        f"{name} in {bucket.uri}, which says what a job has replaced, is damaged: {why}",
        hint="what it kept is beside it, by numbers of output shards: look at it, and remove it",
    )
