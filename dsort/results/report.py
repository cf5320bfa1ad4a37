"""The report of a job or of a plan, in parts.

Reports are frozen and picklable. ``to_dict`` converts a report to JSON types, in the flat form of
``--json``, ``report.json`` and REST.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from msgspec import Struct, field, to_builtins

from dsort.errors import InputError
from dsort.order.mixing import Mixing
from dsort.results.layout import manifest_name
from dsort.sizes import format_bytes, format_count

WORKERS_MAX: Final = 65_536
RUN_FORM: Final = (
    *("job_id", "state", "output_uri", "manifest_name", "move", "workers", "input_shards"),
    *("output_shards", "records", "members", "payload_bytes", "file_bytes", "seed"),
    *("phase_seconds", "reactions", "warnings", "error", "mixing", "timeline", "algorithm"),
    *("outputs", "flow"),
)
"""The keys of the flat form of a job that ran, in order."""
PLAN_FORM: Final = (
    *("job_id", "input_shards", "records", "members", "payload_bytes", "file_bytes", "shards"),
    *("move", "move_reason", "workers", "memory_bytes", "scratch_bytes", "seed", "reactions"),
    *("warnings", "mixing", "algorithm", "outputs", "readers", "estimate"),
)
"""The keys of the flat form of a plan, in order."""


class Sample(NamedTuple):
    """One moment. ``elapsed_s``: since the job began; ``bytes_done``: in this phase so far;
    ``bytes_per_s``: the rate since the sample before, 0 at the start of a phase."""

    elapsed_s: float
    phase: str
    bytes_done: int
    bytes_per_s: float


class Totals(Struct, frozen=True):
    """Sums over all shards."""

    input_shards: int
    output_shards: int
    records: int
    members: int
    payload_bytes: int  # of all members, without headers and padding
    file_bytes: int  # of all output shards


class Run(Struct, frozen=True):
    """How a job ran. ``move``: map, range or spill; "" if the job ended before it chose a
    movement."""

    move: str
    workers: int
    phase_seconds: dict[str, float] = field(default_factory=dict)
    timeline: tuple[Sample, ...] = ()  # of this attempt


class RecordFlow(Struct, frozen=True):
    """The flow of records through a job. The output has the records ``read``, by input ("" for a
    single input), minus the records ``dropped``, plus the records ``added``, both by cause."""

    read: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    added: dict[str, int] = field(default_factory=dict)

    def drop(self, what: str, count: int) -> None:
        """Count ``count`` more records that ``what`` dropped."""
        if count:
            self.dropped[what] = self.dropped.get(what, 0) + count

    def add(self, what: str, count: int) -> None:
        """Count ``count`` more records that ``what`` added."""
        if count:
            self.added[what] = self.added.get(what, 0) + count

    @property
    def out(self) -> int:
        """How many records the output has."""
        return sum(self.read.values()) - sum(self.dropped.values()) + sum(self.added.values())


class Order(Struct, frozen=True):
    """How records were put in order. ``algorithm``: the algorithm in words; ``mixing``: None
    without a plan or without records; ``flow``: None before there is a plan, in the report of a
    plan, and for a manifest."""

    seed: str | None
    algorithm: str = ""
    mixing: Mixing | None = None
    flow: RecordFlow | None = None


class ReactionCount(Struct, frozen=True):
    """How often a reaction was needed, with some names of the records or shards."""

    kind: str
    count: int
    samples: tuple[str, ...]


class OutputCount(Struct, frozen=True):
    """The sums of one of several outputs."""

    name: str
    shards: int
    records: int
    payload_bytes: int
    file_bytes: int


class PlannedShard(Struct, frozen=True):
    """One output shard as it would be written."""

    name: str
    records: int
    payload_bytes: int
    file_bytes: int


class ReaderCounts(Struct, frozen=True):
    """The numbers of workers that can share the shards of one output equally. ``output``: the name
    of the output, "" for a single one; ``records_min``, ``records_max``: the fewest and the most
    records of its shards; ``workers``: all numbers of readers (world size x workers of each), up to
    65,536 and ascending, that divide the number of shards."""

    output: str
    shards: int
    records_min: int
    records_max: int
    workers: tuple[int, ...]


class PlanEstimate(Struct, frozen=True):
    """The bytes that a job would move. ``disk_*``: of files, including those of scratch, whether or
    not the page cache has them; ``store_*``: of objects in stores, over the network;
    ``exchanged_bytes``: between nodes.

    ``requests``: to object stores, by kind (see ``storage.request_counts``).
    """

    disk_read_bytes: int
    disk_written_bytes: int
    store_read_bytes: int
    store_written_bytes: int
    exchanged_bytes: int
    requests: dict[str, int]


class Forecast(Struct, frozen=True):
    """The facts about a job that was only planned."""

    shards: tuple[PlannedShard, ...]  # all of them, in order
    move_reason: str
    memory_bytes: int  # per node, including the page cache that `map` relies on
    scratch_bytes: int
    readers: tuple[ReaderCounts, ...] = ()  # of each output
    estimate: PlanEstimate | None = None  # None in plans of older versions


class JobReport(Struct, frozen=True):
    """The work of a job. With a ``plan``, nothing was written, and the report has the work that the
    job would do."""

    job_id: str
    state: str  # finished | aborted | planned
    output_uri: str
    totals: Totals
    run: Run
    order: Order
    reactions: tuple[ReactionCount, ...] = ()
    warnings: tuple[str, ...] = ()
    error: str | None = None
    manifest_name: str | None = None  # in the output bucket; None if nothing was committed
    outputs: tuple[OutputCount, ...] = ()  # empty if there is only one
    plan: Forecast | None = None

    @property
    def records(self) -> int:
        """How many records the output has."""
        return self.totals.records

    @property
    def output_shards(self) -> int:
        """How many output shards there are."""
        return self.totals.output_shards

    @property
    def shards(self) -> tuple[PlannedShard, ...]:
        """The shards of a plan, all of them, in order."""
        return self.plan.shards if self.plan else ()

    def __repr__(self) -> str:
        totals = self.totals
        shards = f"{totals.input_shards:,} → {format_count(totals.output_shards, 'shard')}"
        records = format_count(totals.records, "record")
        figures = f"{shards}, {records}, {format_bytes(totals.file_bytes)}"
        where = f", by {self.run.move}" if self.plan else f" in {self.output_uri}"
        return f"<JobReport {self.job_id} {self.state}: {figures}{where}>"

    def _repr_html_(self) -> str:
        """For a notebook."""
        from dsort.html_tables import fields_html, rows_html

        totals, run, plan = self.totals, self.run, self.plan
        title, how = f"job {self.job_id} {self.state}", []
        if not plan:
            how.append(("took", f"{sum(run.phase_seconds.values()):.1f} s, by {run.move}"))
        else:
            title = "plan: nothing was written"
            how.append(("move", f"{run.move}: {plan.move_reason}"))
            how.append(("scratch", format_bytes(plan.scratch_bytes)))
            for each in plan.readers:
                numbers = ", ".join(map(str, each.workers))
                how.append((f"readers {each.output}".strip(), f"world size x workers of {numbers}"))
        head = fields_html(
            title,
            [
                ("result", self.output_uri),
                ("manifest", self.manifest_name),
                ("shards", f"{totals.input_shards:,} → {totals.output_shards:,}"),
                ("records", f"{totals.records:,}"),
                ("size", format_bytes(totals.file_bytes)),
                *(
                    (
                        f"→ {each.name}",
                        f"{format_count(each.records, 'record')} in "
                        f"{format_count(each.shards, 'shard')}",
                    )
                    for each in self.outputs
                ),
                ("algorithm", self.order.algorithm),
                *how,
                ("seed", self.order.seed),
                *((each.kind, f"{each.count:,}") for each in self.reactions),
                *(("warning", text) for text in self.warnings),
                ("error", self.error),
            ],
        )
        if not plan:
            return head
        rows = (
            (each.name, f"{each.records:,}", format_bytes(each.file_bytes)) for each in plan.shards
        )
        return head + rows_html(("shard", "records", "size"), rows, len(plan.shards))

    def to_dict(self) -> dict[str, object]:
        """The report in JSON types and in its documented form, which is flat."""
        flat = to_builtins(self)
        for part in ("totals", "run", "order", "plan"):
            flat.update(flat[part] or {})
        if self.plan:
            return {name: flat[name] for name in PLAN_FORM}
        return {name: flat[name] for name in RUN_FORM if name != "flow" or self.order.flow}


def reaction_counts(listed: Iterable[Mapping[str, Any]]) -> tuple[ReactionCount, ...]:
    """Reactions as a manifest or a report lists them."""
    return tuple(
        ReactionCount(each["kind"], each["count"], tuple(each["samples"])) for each in listed
    )


def output_counts(manifest: Mapping[str, Any]) -> tuple[OutputCount, ...]:
    """The sums for each output that the spec of a manifest names."""
    sums = {each["name"]: [0, 0, 0, 0] for each in manifest["spec"].get("outputs") or ()}
    for row in manifest["outputs"] if sums else ():
        own = sums[row["output"]]
        sizes = (1, row["records"], row["payload_bytes"], row["file_bytes"])
        own[:] = [total + size for total, size in zip(own, sizes, strict=True)]
    return tuple(OutputCount(name, *own) for name, own in sums.items())


def reader_counts(shards: Iterable[tuple[str, int]]) -> tuple[ReaderCounts, ...]:
    """The counts for each output, in the order in which outputs occur. ``shards``: (output,
    records) of each shard."""
    found: dict[str, tuple[int, int, int]] = {}
    for output, records in shards:
        count, least, most = found.get(output, (0, records, records))
        found[output] = (count + 1, min(least, records), max(most, records))
    return tuple(
        ReaderCounts(output, count, least, most, _divisors(count))
        for output, (count, least, most) in found.items()
    )


def _divisors(number: int) -> tuple[int, ...]:
    small = [each for each in range(1, math.isqrt(number) + 1) if number % each == 0]
    whole = {*small, *(number // each for each in small)}
    return tuple(sorted(each for each in whole if each <= WORKERS_MAX))


def report_of_manifest(manifest: Mapping[str, Any], output_uri: str) -> JobReport:
    """The report of the job that wrote ``manifest``. ``InputError`` if the manifest is damaged."""
    from dsort.order.mixing_counts import mixing_of  # loads NumPy

    try:
        totals, move, mixing = manifest["totals"], manifest["move"], manifest.get("mixing")
        outputs = output_counts(manifest)
        return JobReport(
            job_id=manifest["job_id"],
            state="finished",
            output_uri=output_uri,
            manifest_name=manifest_name(manifest["job_id"]),
            totals=Totals(**{name: totals[name] for name in Totals.__struct_fields__}),
            run=Run(
                move=move["way"],
                workers=move["workers"],
                phase_seconds=dict(manifest["phase_seconds"]),
                timeline=tuple(Sample(*row) for row in manifest.get("timeline", ())),
            ),
            order=Order(
                seed=manifest["spec"]["algorithm"].get("seed"),
                mixing=mixing_of(mixing) if mixing is not None else None,
            ),
            reactions=reaction_counts(manifest["reactions"]),
            outputs=outputs if len(outputs) > 1 else (),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"the manifest of the job in {output_uri} is damaged: {error}",
            hint="the file may have been edited; `dsort verify` reports more",
        ) from error


class JobStarted(Struct, frozen=True):
    """The inputs are known and the way payload moves is chosen; workers start now."""

    job_id: str
    move: str  # map | range | spill
    workers: int
    input_shards: int
    input_bytes: int
    where: str = ""  # the addresses that a Ray listens on


class Progress(Struct, frozen=True):
    """The progress of one phase. A total of 0 is not known (yet). If inputs are read several times,
    bytes are counted over all passes, and shards and records over one pass. ``members_done``,
    ``payload_bytes_done``: the members and the payload that were extracted; payload without headers
    and padding."""

    job_id: str
    phase: str  # resolve | extract | plan | create | commit
    shards_done: int
    shards_total: int
    records_done: int
    bytes_done: int
    bytes_total: int
    elapsed_s: float  # since this phase began
    members_done: int = 0
    payload_bytes_done: int = 0


class PhaseDone(Struct, frozen=True):
    """One phase is over; its totals. ``members``, ``payload_bytes``: as in ``Progress``."""

    job_id: str
    phase: str
    elapsed_s: float
    shards: int
    records: int
    bytes: int
    members: int = 0
    payload_bytes: int = 0


class JobWarning(Struct, frozen=True):
    """A fact that the user should know, but that does not stop the job."""

    job_id: str
    kind: str  # the reaction's or the note's name, for example "missing_shards"
    text: str


Event = Progress | PhaseDone | JobWarning | JobStarted
