"""The progress of a job, its counts, and the events for its listener."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from msgspec import Struct, field

from dsort.containers.base import Container
from dsort.data.tally import Tally
from dsort.errors import InvariantError
from dsort.log_lines import logger_of
from dsort.results.report import (
    Event,
    JobWarning,
    PhaseDone,
    Progress,
    ReactionCount,
    Sample,
)
from dsort.sizes import agreed
from dsort.spec.model import JobSpec

MOVING_PHASES: Final = frozenset({"extract", "create"})

TIMELINE_SAMPLES_MAX: Final = 240
STEP_S_MIN: Final = 0.1


class _Point(Struct, frozen=True):
    elapsed_s: float
    phase: str
    bytes_done: int
    border: bool  # of a phase: kept as long as there is room


def _point(elapsed_s: float, phase: str, bytes_done: int, *, border: bool) -> _Point:
    return _Point(elapsed_s, phase, bytes_done if phase in MOVING_PHASES else 0, border)


class Timeline(Struct):
    """Samples at least ``step_s`` apart, and the begin and end of each phase. If there are too many
    samples, every second one is dropped, and the step doubles. Times do not decrease."""

    samples_max: int = TIMELINE_SAMPLES_MAX
    step_s: float = STEP_S_MIN
    _points: list[_Point] = field(default_factory=list)
    _latest: list[_Point] = field(default_factory=list)

    def begin(self, phase: str, elapsed_s: float) -> None:
        """Add the start of a phase. If a phase was left without its end, its last progress is kept
        instead."""
        for point in self._waiting():
            self._keep(point)
        self._keep(_Point(elapsed_s, phase, 0, border=True))

    def note(self, phase: str, elapsed_s: float, bytes_done: int) -> None:
        """Add progress of a phase that began."""
        point = _point(elapsed_s, phase, bytes_done, border=False)
        if elapsed_s - self._points[-1].elapsed_s < self.step_s:
            self._latest = [point]
        else:
            self._keep(point)

    def end(self, phase: str, elapsed_s: float, bytes_done: int) -> None:
        """Add the end of a phase that began."""
        before = self._points[-1]
        if not before.border and elapsed_s - before.elapsed_s < self.step_s:
            self._points.pop()  # too close to give a rate
        self._keep(_point(elapsed_s, phase, bytes_done, border=True))

    def samples(self) -> tuple[Sample, ...]:
        """The samples, at most ``samples_max``, in order of time."""
        points = [*self._points, *self._waiting()]
        samples: list[Sample] = []
        for before, point in zip([*points[:1], *points], points, strict=False):
            seconds = point.elapsed_s - before.elapsed_s
            steady = before.phase == point.phase and seconds > 0
            rate = (point.bytes_done - before.bytes_done) / seconds if steady else 0.0
            samples.append(
                Sample(round(point.elapsed_s, 3), point.phase, point.bytes_done, round(rate, 1))
            )
        return tuple(samples)

    def _waiting(self) -> list[_Point]:
        """The last progress, if it is newer than the last point that is kept."""
        return [each for each in self._latest if each.elapsed_s > self._points[-1].elapsed_s]

    def _keep(self, point: _Point) -> None:
        self._latest = []
        self._points.append(point)
        if len(self._points) < self.samples_max:
            return
        self.step_s *= 2
        last = len(self._points) - 1
        thinned = [p for at, p in enumerate(self._points) if p.border or at == last or at % 2]
        if len(thinned) > self.samples_max * 3 // 4:
            thinned = self._points[:-1:2] + self._points[-1:]
        self._points = thinned


PHASES = ("resolve", "extract", "plan", "create", "commit")

log = logger_of("job")


class PhaseTotals(Struct):
    """The totals of one phase so far. Times are seconds of the coordinator's clock."""

    began_s: float
    shards_total: int
    bytes_total: int
    shards: int = 0
    records: int = 0
    bytes: int = 0
    members: int = 0
    payload_bytes: int = 0
    seconds: float = 0.0  # 0 while it runs


class JobState(Struct):
    """The phases of a job in their order, each at most once (surveys are part of ``extract``)."""

    phases: dict[str, PhaseTotals] = field(default_factory=dict)
    phase: str = ""  # the one that runs
    tally: Tally = field(default_factory=Tally)

    def begin(
        self, phase: str, at_s: float, *, shards_total: int = 0, bytes_total: int = 0
    ) -> PhaseTotals:
        """Begin a phase; totals of 0 are not known. ``InvariantError`` if its turn is over, or
        another phase runs."""
        started = [PHASES.index(name) for name in self.phases]
        if self.phase or PHASES.index(phase) <= max(started, default=-1):
            raise InvariantError(f"phase {phase} cannot begin after {list(self.phases)}")
        self.phase = phase
        self.phases[phase] = PhaseTotals(at_s, shards_total, bytes_total)
        return self.phases[phase]

    @property
    def current(self) -> PhaseTotals:
        """The totals of the phase that runs. ``InvariantError`` if none does."""
        if not self.phase:
            raise InvariantError("no phase is running")
        return self.phases[self.phase]

    def end(self, at_s: float) -> None:
        """End the phase that runs."""
        self.current.seconds = at_s - self.current.began_s
        self.phase = ""

    def seconds(self) -> dict[str, float]:
        """Seconds of each phase, rounded to microseconds; 0 while it runs."""
        return {name: round(totals.seconds, 6) for name, totals in self.phases.items()}


QUIET_KINDS = frozenset(
    {
        "clutter_files",
        "hidden_files",
        "other_files",
        "stray_members_kept",
        "conflicts_left_out",
        "copied_by_mix",
        "deduplicated",
    }
)
"""Kinds that the manifest counts, but that need no warning."""
AS_ASKED = "left_out_"
"""Kinds of records that a spec leaves out on purpose begin with this text. They need no warning,
either."""

WARNING_TEXTS = {  # [singular|plural]
    "rows_without_record": "{count} [row|rows] of ingest.table [is|are] about no record: {names}",
    "records_without_row": "{count} [record has|records have] no row in ingest.table: {names}",
    "unlisted_files": "{count} [file was|files were] left out: [it is|they are] in no row of "
    "metadata: {names}",
    "unusable_files": "{count} [file was|files were] left out: [it|they] cannot be "
    "[a member|members]: {names}",
    "failed_records": "steps failed at {count} [record|records]; on_error allows this: {names}",
    "lost_with_failed": "{count} [record was|records were] left out, because a step failed at "
    "another record of the same shard: {names}",
    "missing_shards": "{count} input [shard is|shards are] missing: {names}",
    "objects_passed_over": "{count} [object|objects] passed over: [its name does|their names "
    "do] not end in the input extension: {names}",
    "duplicated_records": "{count} [member occurs|members occur] again in the same record; the "
    "last one was kept: {names}",
    "duplicate_keys": "{count} [record has|records have] the key of an earlier record (webdataset "
    "reads neighbours with the same key as one sample; duplicate_keys: rename prevents this): "
    "{names}",
    "duplicate_keys_dropped": "{count} [record was|records were] dropped, because an earlier "
    "record has [its|their] key: {names}",
    "duplicate_keys_renamed": "{count} [record was|records were] renamed, because an earlier "
    "record had [its|their] key: {names}",
    "final_newlines_stripped": "{count} [payload|payloads] lost the line feed at [its|their] end, "
    "which does not come back: {names}",
    "members_defaulted": "{count} [member that a record lacked was|members that records lacked "
    "were] made of member_defaults: {names}",
    "corrupt_shards": "{count} corrupt [shard was|shards were] left out: {names}",
    "stray_members_dropped": "{count} stray [member was|members were] dropped: {names}",
    "missing_members": "{count} [record lacks|records lack] a member that require names: {names}",
    "missing_members_excluded": "{count} [record lacks a member that require names, and "
    "was|records lack a member that require names, and were] left out: {names}",
    "non_adjacent_records": "{count} [piece of a record was not adjacent and was|pieces of records "
    "were not adjacent and were] brought together, in {names}",
    "incomplete_shards": "{count} [shard|shards] may not be whole; only the readable part was "
    "used: {names}",
    "replaced_inputs": "{count} input [shard is|shards are] newer than the manifest of the job "
    "that wrote [it, and has|them, and have] another size: {names}",
    "read_again": "{count} input [shard was|shards were] read by an earlier job whose output is "
    "among the inputs, too, so that [its|their] records are read twice: {names}",
    "unsafe_names": "{count} [member has a name or link target that leads|members have names or "
    "link targets that lead] out of the directory [it is|they are] unpacked in (unsafe_names: "
    "rename prevents this): {names}",
    "unsafe_names_renamed": "{count} [member had a name or link target that leads|members had "
    "names or link targets that lead] out of the directory [it is|they are] unpacked in, and "
    "[was|were] renamed: {names}",
    "ekm_missing_key": "{count} [record has|records have] not exactly one place in the external "
    "key map, or in the result that like names; [it|they] went to ekm_default, or [was|were] "
    "dropped if the spec has no ekm_default: {names}",
    "ekm_malformed_line": "{count} [line of the external key map is|lines of the external key map "
    "are] malformed: {names}",
}


class Reporter(Struct):
    """Counts and times the work of a job, and reports it. ``on_event`` is called in the thread that
    runs the job. ``containers``: of the inputs."""

    job_id: str
    spec: JobSpec
    containers: Sequence[Container]
    on_event: Callable[[Event], None]
    state: JobState = field(default_factory=JobState)
    warnings: list[str] = field(default_factory=list)
    timeline: Timeline = field(default_factory=Timeline)
    _began_s: float = field(default_factory=time.monotonic)

    @contextmanager
    def phase(self, name: str, *, shards: int = 0, bytes_total: int = 0) -> Iterator[None]:
        """Run the body as one phase: time it, and report its begin and end to the listener."""
        totals = self.state.begin(
            name, time.monotonic(), shards_total=shards, bytes_total=bytes_total
        )
        self.timeline.begin(name, totals.began_s - self._began_s)
        self._tell_progress(name)
        log.debug("the phase %s begins", name)
        yield
        ended_s = time.monotonic()
        log.debug("the phase %s ends after %.3f s", name, ended_s - totals.began_s)
        self.state.end(ended_s)
        self.timeline.end(name, ended_s - self._began_s, totals.bytes)
        self.on_event(
            PhaseDone(
                self.job_id,
                name,
                totals.seconds,
                totals.shards,
                totals.records,
                totals.bytes,
                totals.members,
                totals.payload_bytes,
            )
        )

    def expect(self, *, shards: int, bytes_total: int) -> None:
        """Set the totals of the current phase, once they are known."""
        totals = self.state.current
        totals.shards_total, totals.bytes_total = shards, bytes_total

    def count_again(self) -> None:
        """Count shards and records of the current phase from 0, because its next pass reads them
        again. The bytes of the phase are those of all passes."""
        totals = self.state.current
        totals.shards = totals.records = totals.members = totals.payload_bytes = 0

    def advance(
        self,
        *,
        shards: int = 0,
        records: int = 0,
        bytes_done: int = 0,
        members: int = 0,
        payload_bytes: int = 0,
    ) -> None:
        """Add finished work to the current phase, and report the progress."""
        totals = self.state.current
        totals.shards += shards
        totals.records += records
        totals.bytes += bytes_done
        totals.members += members
        totals.payload_bytes += payload_bytes
        self._tell_progress(self.state.phase)

    def note(self, tally: Tally) -> None:
        """Add ``tally`` to the counts, and warn the user where needed."""
        self.state.tally.merge(tally)
        oddities = [each for container in self.containers for each in container.oddities]
        own = {each.kind: each.warning for each in reversed(oddities)}
        texts = WARNING_TEXTS | own | dict.fromkeys(QUIET_KINDS, "")
        for kind, count, samples in tally:
            text = texts.get(kind, "" if kind.startswith(AS_ASKED) else kind + ": {count}: {names}")
            base = "duplicate_keys" if kind.startswith("duplicate_keys") else kind
            if text and getattr(self.spec.config, base, None) != "ignore":
                shown = ", ".join(samples[:3]) + (", …" if count > min(len(samples), 3) else "")
                said = agreed(text, count).format(count=f"{count:,}", names=shown)
                self.warn(kind, said)

    def reactions(self) -> tuple[ReactionCount, ...]:
        """Everything that was counted so far."""
        return tuple(ReactionCount(kind, count, names) for kind, count, names in self.state.tally)

    def warn(self, kind: str, text: str) -> None:
        """Warn the user of something that does not stop the job."""
        self.warnings.append(text)
        self.on_event(JobWarning(self.job_id, kind, text))

    def _tell_progress(self, phase: str) -> None:
        totals = self.state.phases[phase]
        now_s = time.monotonic()
        self.timeline.note(phase, now_s - self._began_s, totals.bytes)
        self.on_event(
            Progress(
                self.job_id,
                phase,
                totals.shards,
                totals.shards_total,
                totals.records,
                totals.bytes,
                totals.bytes_total,
                now_s - totals.began_s,
                totals.members,
                totals.payload_bytes,
            )
        )
