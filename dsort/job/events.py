"""What a job tells while it runs (events) and when it is over (reports): plain values, no engine.

Events go to the ``on_event`` callback of ``dsort.run`` and ``dsort.plan``, in the caller's thread,
in the order things happen. Reports are returned. Everything is frozen, picklable and made of JSON
types once passed through ``dataclasses.asdict`` or their ``to_dict``.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Final, NamedTuple

from dsort.html_tables import fields_html, rows_html
from dsort.job.shard_readers import ReaderCounts
from dsort.order.mixing import Mixing
from dsort.sizes import format_bytes, format_count

MOVING_PHASES: Final = frozenset({"extract", "create"})

TIMELINE_SAMPLES_MAX: Final = 240
STEP_S_MIN: Final = 0.1


class Sample(NamedTuple):
    """One moment. ``elapsed_s``: since the job began; ``bytes_done``: of this phase so far;
    ``bytes_per_s``: since the sample before it, 0 where a phase begins."""

    elapsed_s: float
    phase: str
    bytes_done: int
    bytes_per_s: float


class _Point(NamedTuple):
    elapsed_s: float
    phase: str
    bytes_done: int
    border: bool  # of a phase: kept as long as there is room


def _point(elapsed_s: float, phase: str, bytes_done: int, *, border: bool) -> _Point:
    return _Point(elapsed_s, phase, bytes_done if phase in MOVING_PHASES else 0, border)


@dataclass(slots=True)
class Timeline:
    """Samples at least ``step_s`` apart, and where phases begin and end. When they are too many,
    every second one goes, and the step doubles. Times do not decrease."""

    samples_max: int = TIMELINE_SAMPLES_MAX
    step_s: float = STEP_S_MIN
    _points: list[_Point] = field(default_factory=list)
    _latest: _Point | None = None

    def begin(self, phase: str, elapsed_s: float) -> None:
        """A phase begins."""
        self._flush()
        self._keep(_Point(elapsed_s, phase, 0, border=True))

    def note(self, phase: str, elapsed_s: float, bytes_done: int) -> None:
        """Some more is done of a phase that began."""
        point = _point(elapsed_s, phase, bytes_done, border=False)
        if elapsed_s - self._points[-1].elapsed_s < self.step_s:
            self._latest = point
        else:
            self._keep(point)

    def end(self, phase: str, elapsed_s: float, bytes_done: int) -> None:
        """A phase that began is over."""
        before = self._points[-1]
        if not before.border and elapsed_s - before.elapsed_s < self.step_s:
            self._points.pop()  # too close to say anything of a rate
        self._keep(_point(elapsed_s, phase, bytes_done, border=True))

    def samples(self) -> tuple[Sample, ...]:
        """At most ``samples_max``, in order of time."""
        points = self._points
        if self._latest is not None and self._latest.elapsed_s > points[-1].elapsed_s:
            points = [*points, self._latest]
        samples: list[Sample] = []
        before: _Point | None = None
        for point in points:
            rate = 0.0
            if before is not None and before.phase == point.phase:
                seconds = point.elapsed_s - before.elapsed_s
                rate = (point.bytes_done - before.bytes_done) / seconds if seconds > 0 else 0.0
            samples.append(
                Sample(round(point.elapsed_s, 3), point.phase, point.bytes_done, round(rate, 1))
            )
            before = point
        return tuple(samples)

    def _flush(self) -> None:
        """A phase was left without its end: what was last known of it stands for that."""
        if self._latest is not None and self._latest.elapsed_s > self._points[-1].elapsed_s:
            self._keep(self._latest)

    def _keep(self, point: _Point) -> None:
        self._latest = None
        self._points.append(point)
        if len(self._points) < self.samples_max:
            return
        self.step_s *= 2
        last = len(self._points) - 1
        thinned = [p for at, p in enumerate(self._points) if p.border or at == last or at % 2]
        if len(thinned) > self.samples_max * 3 // 4:
            thinned = self._points[:-1:2] + self._points[-1:]
        self._points = thinned


@dataclass(frozen=True, slots=True)
class JobStarted:
    """The inputs are known and the way payload moves is chosen; workers start now."""

    job_id: str
    move: str  # map | spill
    workers: int
    input_shards: int
    input_bytes: int
    where: str = ""  # what there is to know of where workers live: on what a Ray listens


@dataclass(frozen=True, slots=True)
class Progress:
    """How far one phase is. A total of 0 means that it is not known (yet). ``members_done``,
    ``payload_bytes_done``: of extraction; payload without headers and padding."""

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


@dataclass(frozen=True, slots=True)
class PhaseDone:
    """One phase is over; its totals. ``members``, ``payload_bytes``: as of ``Progress``."""

    job_id: str
    phase: str
    elapsed_s: float
    shards: int
    records: int
    bytes: int
    members: int = 0
    payload_bytes: int = 0


@dataclass(frozen=True, slots=True)
class JobWarning:
    """Something the user should know that does not stop the job."""

    job_id: str
    kind: str  # the reaction's or the note's name, for example "missing_shards"
    text: str


Event = Progress | PhaseDone | JobWarning | JobStarted


@dataclass(frozen=True, slots=True)
class ReactionCount:
    """How often a reaction was needed, with a few of the names it was about."""

    kind: str
    count: int
    samples: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RecordFlow:
    """Where all records of a job came from and went: those ``read`` by input ("": the only one),
    less those ``dropped`` and with those ``added``, by what did so, are those that came out."""

    read: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    added: dict[str, int] = field(default_factory=dict)

    def drop(self, what: str, count: int) -> None:
        """``what`` dropped ``count`` more."""
        if count:
            self.dropped[what] = self.dropped.get(what, 0) + count

    def add(self, what: str, count: int) -> None:
        """``what`` added ``count`` more."""
        if count:
            self.added[what] = self.added.get(what, 0) + count

    @property
    def out(self) -> int:
        """How many records come out."""
        return sum(self.read.values()) - sum(self.dropped.values()) + sum(self.added.values())


@dataclass(frozen=True, slots=True)
class OutputCount:
    """What one of several outputs got."""

    name: str
    shards: int
    records: int
    payload_bytes: int
    file_bytes: int


@dataclass(frozen=True, slots=True)
class JobReport:
    """What a job did."""

    job_id: str
    state: str  # finished | aborted | planned
    output_uri: str
    manifest_name: str | None  # in the output bucket; None where nothing was committed
    move: str
    workers: int
    input_shards: int
    output_shards: int
    records: int
    members: int
    payload_bytes: int  # of all members, without headers and padding
    file_bytes: int  # of all output shards
    seed: str | None
    phase_seconds: dict[str, float]
    reactions: tuple[ReactionCount, ...]
    warnings: tuple[str, ...]
    error: str | None
    mixing: Mixing | None = None  # None where there was no plan, or no records
    timeline: tuple[Sample, ...] = ()  # of this attempt
    algorithm: str = ""  # in words
    outputs: tuple[OutputCount, ...] = ()  # empty where there is only one
    flow: RecordFlow | None = None  # None where there was no plan, and of a manifest

    def __repr__(self) -> str:
        figures = _figures(self.input_shards, self.output_shards, self.records, self.file_bytes)
        return f"<JobReport {self.job_id} {self.state}: {figures} in {self.output_uri}>"

    def _repr_html_(self) -> str:
        """For a notebook."""
        return fields_html(
            f"job {self.job_id} {self.state}",
            [
                ("result", self.output_uri),
                ("manifest", self.manifest_name),
                *_rows_of_figures(self, self.output_shards),
                ("took", f"{sum(self.phase_seconds.values()):.1f} s, by {self.move}"),
                ("seed", self.seed),
                *((each.kind, f"{each.count:,}") for each in self.reactions),
                *(("warning", text) for text in self.warnings),
                ("error", self.error),
            ],
        )

    def to_dict(self) -> dict[str, object]:
        """The report in JSON types."""
        document = asdict(self)
        if self.flow is None:
            del document["flow"]
        return document


@dataclass(frozen=True, slots=True)
class PlannedShard:
    """One output shard as it would be written."""

    name: str
    records: int
    payload_bytes: int
    file_bytes: int


@dataclass(frozen=True, slots=True)
class PlanEstimate:
    """What a job would move. ``disk_*``: files, those of scratch
    included, whether or not the page cache has them; ``store_*``: of object stores, over the
    network; ``exchanged_bytes``: between nodes.

    ``requests``: to object stores, by kind (see ``storage.request_counts``).
    """

    disk_read_bytes: int
    disk_written_bytes: int
    store_read_bytes: int
    store_written_bytes: int
    exchanged_bytes: int
    requests: dict[str, int]


@dataclass(frozen=True, slots=True)
class PlanReport:
    """What a job would do; nothing was written."""

    job_id: str
    input_shards: int
    records: int
    members: int
    payload_bytes: int
    file_bytes: int
    shards: tuple[PlannedShard, ...]  # all of them, in order
    move: str
    move_reason: str
    workers: int
    memory_bytes: int  # what the job takes on a node, the page cache that `map` lives by included
    scratch_bytes: int
    seed: str | None
    reactions: tuple[ReactionCount, ...]
    warnings: tuple[str, ...]
    mixing: Mixing | None = None  # None where there are no records
    algorithm: str = ""  # in words
    outputs: tuple[OutputCount, ...] = ()  # empty where there is only one
    readers: tuple[ReaderCounts, ...] = ()  # of each output
    estimate: PlanEstimate | None = None  # None in plans of older versions

    def __repr__(self) -> str:
        figures = _figures(self.input_shards, len(self.shards), self.records, self.file_bytes)
        return f"<PlanReport {self.job_id}: {figures}, by {self.move}>"

    def _repr_html_(self) -> str:
        """For a notebook."""
        readers = (
            (
                f"readers {each.output}".strip(),
                f"world size x workers of {', '.join(map(str, each.workers))}",
            )
            for each in self.readers
        )
        head = fields_html(
            "plan: nothing was written",
            [
                *_rows_of_figures(self, len(self.shards)),
                ("move", f"{self.move}: {self.move_reason}"),
                ("scratch", format_bytes(self.scratch_bytes)),
                *readers,
                *((each.kind, f"{each.count:,}") for each in self.reactions),
                *(("warning", text) for text in self.warnings),
            ],
        )
        rows = (
            (each.name, f"{each.records:,}", format_bytes(each.file_bytes)) for each in self.shards
        )
        return head + rows_html(("shard", "records", "size"), rows, len(self.shards))

    def to_dict(self) -> dict[str, object]:
        """The report in JSON types."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class VerifyProblem:
    """One difference between a result and what its manifest or its inputs say."""

    kind: str  # missing_record | doubled_record | changed_bytes | checksum | order | ...
    shard: str
    record: str  # "" where it is about the shard as a whole
    text: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What ``dsort verify`` found. ``problem_count`` counts all, ``problems`` holds the first."""

    job_id: str
    output_uri: str
    input_shards: int
    output_shards: int
    records: int
    members: int
    bytes_read: int
    elapsed_s: float
    problem_count: int
    problems: tuple[VerifyProblem, ...]
    warnings: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether the result is what it should be."""
        return self.problem_count == 0

    def __repr__(self) -> str:
        verdict = "ok" if self.ok else format_count(self.problem_count, "difference")
        records = format_count(self.records, "record")
        return f"<VerifyReport {self.job_id} {verdict}: {records} in {self.output_uri}>"

    def _repr_html_(self) -> str:
        """For a notebook."""
        verdict = "ok" if self.ok else format_count(self.problem_count, "difference")
        head = fields_html(
            f"verify {self.job_id}: {verdict}",
            [("result", self.output_uri), ("records", f"{self.records:,}")],
        )
        if self.ok:
            return head
        rows = ((each.kind, each.shard, each.record, each.text) for each in self.problems)
        return head + rows_html(("what", "shard", "record", "details"), rows, self.problem_count)

    def to_dict(self) -> dict[str, object]:
        """The report in JSON types."""
        return {"ok": self.ok, **asdict(self)}


def _rows_of_figures(report: JobReport | PlanReport, shards: int) -> list[tuple[str, str]]:
    """What reports of jobs and plans have in common."""
    outputs = (
        (f"→ {each.name}", f"{each.records:,} records in {each.shards:,} shards")
        for each in report.outputs
    )
    return [
        ("shards", f"{report.input_shards:,} → {shards:,}"),
        ("records", f"{report.records:,}"),
        ("size", format_bytes(report.file_bytes)),
        *outputs,
        ("algorithm", report.algorithm),
    ]


def _figures(input_shards: int, output_shards: int, records: int, file_bytes: int) -> str:
    """A report in few words: a notebook shows it so."""
    shards = f"{input_shards:,} → {format_count(output_shards, 'shard')}"
    return f"{shards}, {format_count(records, 'record')}, {format_bytes(file_bytes)}"
