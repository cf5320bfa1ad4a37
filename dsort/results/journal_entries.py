"""The journal of a job: its events, how they are stored, and the state that follows from them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, groupby
from typing import Annotated, Any, Final, NamedTuple, TypeAlias, get_args, get_type_hints

from msgspec import Meta, Struct, field

from dsort.data.json_values import Count, Integer, checked
from dsort.data.tally import Cases, Tally, tally_of
from dsort.errors import InvariantError, JobConflictError, StorageError, damaged
from dsort.naming.names import check_object_name
from dsort.pipeline.movement import EVERY_WAY
from dsort.scratch.logs import ShardCreated
from dsort.storage.routed import place_of
from dsort.workers.tasks import ScratchLost, ShardExtracted

JOURNAL_VERSION = 5
"""Raised with each change of the files that a job stores; a job whose journal has another version
is not resumed."""
PARTITIONS_MAX = 1 << 24
EVENTS_MAX = 1_000_000
"""The most events in one segment."""
_Rows = Annotated[int, Meta(ge=0, le=20_000_000)]
"""The number of rows of one table. It has a bound, because a few bytes can claim many rows."""


_Given = Annotated[str, Meta(min_length=1)]
"""The first field of an event; "" in the state that no event has changed."""


class InputRow(NamedTuple):
    """One input shard as it was resolved."""

    name: str
    size_bytes: Count
    mtime_ns: Integer
    etag: str


class PlannedRow(NamedTuple):
    """One output shard as planned. ``stored_bytes``: without the end marker."""

    name: str
    records: Count
    members: Count
    payload_bytes: Count
    stored_bytes: Count


class JobAccepted(Struct, frozen=True):
    """The job begins; false if it has not begun. ``spec`` is canonical, with its seed; ``created``
    is RFC 3339, UTC."""

    job_id: _Given
    dsort_version: str
    spec: Mapping[str, Any]
    created: str

    def __bool__(self) -> bool:
        return bool(self.job_id)


NOT_ACCEPTED: Final = JobAccepted("", "", {}, "")


class InputsResolved(Struct, frozen=True):
    """The inputs, in input order; an input's ordinal is its place here."""

    inputs: tuple[InputRow, ...]


class MovementChosen(Struct, frozen=True):
    """How payload moves (see ``pipeline.movement.Movement``); false while no movement is chosen."""

    movement: _Given = ""  # map | range | spill
    partitions: Count = 0
    workers: Count = 0
    buffer_bytes: Count = 0
    memory_bytes: Count = 0
    scratch_bytes: Count = 0
    reason: str = ""

    def __bool__(self) -> bool:
        return bool(self.movement)

    @property
    def division(self) -> tuple[str, int]:
        """How index and spill are divided."""
        return self.movement, self.partitions


class Planned(Struct, frozen=True):
    """The cut: all output shards in order; false if there is none yet. ``digest``: equal for two
    plans that are the same."""

    digest: _Given = ""
    shards: tuple[PlannedRow, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.digest)


class Committing(Struct, frozen=True):
    """From here on output shards get their names."""


JournalEvent: TypeAlias = (
    JobAccepted
    | InputsResolved
    | MovementChosen
    | ShardExtracted
    | ScratchLost
    | Planned
    | ShardCreated
    | Committing
)

_KINDS: Final[Mapping[str, type[JournalEvent]]] = {
    kind.__name__: kind for kind in get_args(JournalEvent)
}
_TABLES: Final[Mapping[str, type[InputRow] | type[PlannedRow]]] = {
    "inputs": InputRow,
    "shards": PlannedRow,
}


class JournalState(Struct):
    """The state that follows from a journal. Changes only in ``apply`` and ``begin_attempt``.

    ``has_inputs``: ``inputs`` are known, even if there are none. ``extracted``: the extracted
    shards by input ordinal, without those of lost nodes. ``created``: the created shards by output
    ordinal. ``worker_last``: the highest number of a worker that ended a task, -1 if none did.
    ``attempts``: the number of the newest attempt.
    """

    accepted: JobAccepted = NOT_ACCEPTED
    has_inputs: bool = False
    inputs: tuple[InputRow, ...] = ()
    movement: MovementChosen = MovementChosen()
    extracted: dict[int, ShardExtracted] = field(default_factory=dict)
    planned: Planned = Planned()
    created: dict[int, ShardCreated] = field(default_factory=dict)
    committing: bool = False
    worker_last: int = -1
    attempts: int = 0

    @property
    def materializes(self) -> bool:
        """Whether this is the journal of a materialization, which has a plan and, unlike a job, no
        inputs."""
        return bool(self.planned) and not self.has_inputs

    def begin_attempt(self, attempt: int) -> None:
        """The events that follow belong to ``attempt``."""
        self.attempts = max(self.attempts, attempt)

    def apply(self, event: JournalEvent) -> None:
        """Apply one event. ``InvariantError`` if a second plan differs from the first one."""
        match event:
            case JobAccepted():
                self.accepted = event
            case InputsResolved():
                self.has_inputs, self.inputs = True, event.inputs
            case MovementChosen():
                if self.movement and self.movement.division != event.division:
                    self.extracted = {}  # index and spill are divided in another way
                self.movement = event
            case ShardExtracted():
                self.worker_last = max(self.worker_last, event.worker)
                self.extracted[event.shard] = event
            case ScratchLost():
                kept = self.extracted.items()
                self.extracted = {at: facts for at, facts in kept if facts.node != event.node}
            case Planned():
                if self.planned and self.planned.digest != event.digest:
                    raise InvariantError(
                        "the new plan of a job differs from the plan in its journal"
                    )
                self.planned = event
            case ShardCreated():
                self.created[event.ordinal] = event
            case Committing():
                self.committing = True

    def check(self) -> None:
        """``StorageError`` unless the events fit together. Call this method before the events are
        used, because the journal decides which names are read and written, and anyone with write
        access to the bucket may have written it."""
        shards = len(self.inputs)
        outputs = len(self.planned.shards)
        if any(at >= shards for at in self.extracted):
            raise _damaged("it names an input shard that does not exist")
        runs = ((at, each.run_begin, each.run_shards) for at, each in self.extracted.items())
        if any(begin > at or begin + count > shards for at, begin, count in runs):
            raise _damaged("it names a run of input shards that does not exist")
        if any(at >= outputs for at in self.created):
            raise _damaged("it names an output shard that does not exist")
        moved = self.movement
        fits = moved.movement in EVERY_WAY and 1 <= moved.partitions <= PARTITIONS_MAX
        if moved and not fits:
            raise _damaged("it names a movement that does not exist")
        planned = (place_of(row.name)[1] for row in self.planned.shards)
        for name in chain((row.name for row in self.inputs), planned):
            try:
                check_object_name(name)
            except ValueError as error:
                raise _damaged(str(error)) from None


# -- storing -------------------------------------------------------------------------------------


# Events are stored in *segments*, JSON objects `{"journal": 5, "events": [...]}`. Neighbours of one
# kind are one entry, `{"kind": ..., "count": n, <field>: column, ...}`. A column is a list of n
# values, `{"all": value}` if they are all the same, or `{"of": values, "at": positions}` if there
# are few different ones: the facts of 100,000 shards are a few megabytes and take some tenths of a
# second.
def encode_segment(events: Iterable[JournalEvent]) -> bytes:
    """The segment that holds ``events``, in their order."""
    entries = [_entry(kind, list(run)) for kind, run in groupby(events, type)]
    content = {"journal": JOURNAL_VERSION, "events": entries}
    # ASCII: names with bytes that are not UTF-8 hold lone surrogates, which only escapes can carry.
    return json.dumps(content, separators=(",", ":")).encode("ascii")


def decode_segment(data: bytes) -> list[JournalEvent]:
    """The events of a segment.

    ``JobConflictError`` if it has another format; ``StorageError`` if it is no segment.
    """
    try:
        content = json.loads(data)
        version = content["journal"]
        if version != JOURNAL_VERSION:
            raise _other_format(version)
        events: list[JournalEvent] = []
        for entry in content["events"]:
            if checked(entry["count"], Count) + len(events) > EVENTS_MAX:
                raise ValueError(f"it has more than {EVENTS_MAX:,} events")
            events += _events(entry)
        return events
    except RecursionError:
        raise _damaged("it is nested too deep") from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise _damaged(str(error)) from None


def _damaged(reason: str) -> StorageError:
    return damaged("a part of the job's journal", reason)


def _other_format(version: object) -> JobConflictError:
    return JobConflictError(
        f"the job's journal has the format {str(version)[:20]}, this dsort reads {JOURNAL_VERSION}",
        hint="resume the job with the version of dsort that began it, or start it again: "
        "`dsort gc` removes its files",
    )


def _entry(kind: type[JournalEvent], run: Sequence[JournalEvent]) -> dict[str, Any]:
    entry: dict[str, Any] = {"kind": kind.__name__, "count": len(run)}
    for name in kind.__struct_fields__:
        entry[name] = _column([_plain(getattr(event, name)) for event in run])
    return entry


def _events(entry: Mapping[str, Any]) -> list[JournalEvent]:
    name, count = entry["kind"], entry["count"]
    if name not in _KINDS:
        raise ValueError(f"{name} is no kind of event")
    kind = _KINDS[name]
    known = kind.__struct_fields__
    if unknown := entry.keys() - {"kind", "count", *known}:
        raise ValueError(f"{name} has unknown fields: {', '.join(sorted(unknown))}")
    types = get_type_hints(kind, include_extras=True)
    columns = [
        _read_column(entry[field_name], count, field_name, types[field_name])
        for field_name in known
    ]
    rows = zip(*columns, strict=True) if columns else [()] * count
    return [kind(*row) for row in rows]


def _plain(value: Any) -> Any:
    if isinstance(value, Tally):
        return {"counts": value.counts, "samples": value.samples} if value.counts else None
    if isinstance(value, tuple):  # of rows
        return {
            "rows": len(value),
            "columns": [_column(column) for column in zip(*value, strict=True)],
        }
    return value


def _column(values: Sequence[Any]) -> Any:
    first = values[0]
    if len(values) > 1 and all(value == first for value in values):
        return {"all": first}
    if isinstance(first, str):
        places = {value: at for at, value in enumerate(dict.fromkeys(values))}
        if len(places) * 2 < len(values):
            return {"of": list(places), "at": [places[value] for value in values]}
    return list(values)


def _read_column(column: Any, count: int, name: str, kind: object) -> list[Any]:
    """``count`` values of the type ``kind``."""
    if isinstance(column, list):
        distinct, values = column, column
    elif "all" in column:
        distinct, values = [column["all"]], [column["all"]] * count
    else:
        distinct = column["of"]
        values = [distinct[at] for at in column["at"]]
    if len(values) != count:
        raise ValueError(f"{name} has {len(values)} values, not {count}")
    if kind is Tally:
        return [_tally(value) for value in values]
    if name in _TABLES:
        return [_read_table(_TABLES[name], value) for value in values]
    checked(distinct, list[kind])  # type: ignore[valid-type]
    return values


class _Tally(Struct):
    counts: dict[str, Cases]
    samples: dict[str, list[str]]


def _tally(value: Any) -> Tally:
    if value is None:
        return Tally()
    stored = checked(value, _Tally)
    return tally_of((kind, n, stored.samples.get(kind, ())) for kind, n in stored.counts.items())


def _read_table(row: type[InputRow] | type[PlannedRow], value: Any) -> tuple[Any, ...]:
    count = checked(value["rows"], _Rows)
    if not count:
        return ()
    types = get_type_hints(row, include_extras=True)
    columns = [
        _read_column(column, count, name, types[name])
        for name, column in zip(row._fields, value["columns"], strict=True)
    ]
    return tuple(map(row._make, zip(*columns, strict=True)))
