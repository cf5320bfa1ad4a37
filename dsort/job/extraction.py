"""The extract phase: it makes the index, and the spill, of every input shard. If a node is lost,
the phase makes the files of the node's shards again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar, cast

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from dsort.containers.registry import codec_of
from dsort.data.tally import FITS, FLOW, FLOW_ADDED, FLOW_DROPPED, FLOW_READ, Tally
from dsort.errors import InvariantError, ScratchLostError, TransformError, WorkerLostError
from dsort.job.job import Facts, Job
from dsort.log_lines import logger_of
from dsort.naming.names import archive_extension, first_few
from dsort.results.report import RecordFlow
from dsort.scratch.index import RUN_SHARDS_MAX
from dsort.scratch.nodes import ShardLocations
from dsort.scratch.requests import Indexed
from dsort.storage.routed import input_of
from dsort.workers.batch import DEDUPLICATE
from dsort.workers.header_reader import SHARDS_AHEAD
from dsort.workers.tasks import (
    ExtractRunTask,
    ExtractTask,
    RunExtracted,
    ScratchLost,
    ShardExtracted,
    Stage,
    Task,
)

HOMES_LOST_MAX = 16
"""The most scratch nodes that one attempt may lose; if it loses more, it fails."""

log = logger_of("job")

Result = TypeVar("Result")
AnyTask = TypeVar("AnyTask", bound=Task)
Done = TypeVar("Done")


class Restaged(Protocol):
    """A part of a job that leaves its results on nodes. It can be repeated if a node is lost."""

    def complete(self) -> None:
        """Do the missing work."""

    def lose(self, node: str) -> None:
        """Mark the results on ``node`` as missing."""


def retry_after_lost_scratch(work: Restaged, action: Callable[[], Result]) -> Result:
    """Complete ``work``, then run ``action`` and return its result. Repeat both after each lost
    node."""
    while True:
        try:
            work.complete()
            return action()
        except ScratchLostError as lost:
            work.lose(lost.node)


def answers(
    job: Job, tasks: Iterable[AnyTask], kind: type[Done], *, workers_max: int | None = None
) -> Iterator[tuple[AnyTask, Done]]:
    """Run all tasks; yields each task with its result, a ``kind``. ``ScratchLostError`` after the
    last result if some tasks could not be done because a node was lost."""
    lost = ""
    for task, done in job.runtime.run(tasks, workers_max=workers_max):
        for text in job.runtime.warnings():
            job.reporter.warn("slow_exchange", text)
        if isinstance(done, ScratchLost):
            lost = done.node
            continue
        assert isinstance(done, kind)
        yield cast(AnyTask, task), done
    if lost:
        raise ScratchLostError(lost, f"scratch {lost} was lost")


class Extraction(Struct, eq=False):
    """One pass over the inputs.

    ``known``: facts that earlier passes found. ``done``: the facts of each extracted shard, by
    ordinal. ``locations``: the name of the shared file that lists the node of each shard, "" until
    all shards are extracted. ``resumed``: whether some facts come from the journal of an earlier
    attempt.
    """

    job: Job
    stage: Stage
    known: Facts = field(default_factory=Facts)
    done: dict[int, ShardExtracted] = field(default_factory=dict)
    locations: str = ""
    resumed: bool = False
    _scratch_nodes: list[str] = field(default_factory=list)
    _versions: int = 0
    _lost: int = 0
    _before: dict[int, ShardExtracted] = field(default_factory=dict)
    _since: dict[int, int] = field(default_factory=dict)
    _counted: set[int] = field(default_factory=set)

    def complete(self) -> None:
        """Extract the missing shards, and share the locations of all shards."""
        missing = [n for n in range(len(self.job.inputs)) if n not in self.done]
        workers_max = self.job.extractors_max
        if missing:
            log.debug("%d input shards are read for the stage %s", len(missing), self.stage.name)
        for _, done in answers(self.job, self._tasks(missing), Struct, workers_max=workers_max):
            assert isinstance(done, (ShardExtracted, RunExtracted))
            for facts in done.shards if isinstance(done, RunExtracted) else (done,):
                self._take(facts)
        if not self.locations:
            self._versions += 1
            self.locations = f"where-{self.stage.name}-{self._versions}"
            self.job.runtime.share(self.locations, self.shard_locations().dump())

    def lose(self, node: str) -> None:
        """Mark the shards extracted on ``node`` as missing, so that they are extracted again.
        ``WorkerLostError`` after more than ``HOMES_LOST_MAX`` lost nodes."""
        gone = [shard for shard, facts in self.done.items() if facts.node == node]
        for shard in gone:
            # Without its tally, which is counted anew when the shard is read again.
            self._before[shard] = replace(self.done.pop(shard), tally=Tally())
        self.locations = ""
        self._lost += 1
        log.debug("node %s is lost, with its files of %d shards", node, len(gone))
        if self._lost > HOMES_LOST_MAX:
            raise WorkerLostError(
                f"{self._lost} nodes were lost with their scratch",
                hint="look at the nodes; `dsort resume` continues with the files that are left",
            )
        self.job.attempt.journal.append(ScratchLost(node))
        self.job.reporter.warn(
            "node_lost",
            f"a node was lost with its scratch: {len(gone)} input shards are extracted again",
        )

    def keep(self, facts: Iterable[ShardExtracted]) -> None:
        """Take over the shards that an earlier attempt extracted and that are still in scratch."""
        present = set(self.job.runtime.scratch_nodes())
        by_node: dict[str, list[ShardExtracted]] = {}
        for each in facts:
            if each.node in present:
                by_node.setdefault(each.node, []).append(each)
        for node, every in by_node.items():
            # Keep whole runs only: the file of a run has the rows of all its shards, so rows of
            # shards that the journal lacks would be in the index twice. A run that two attempts
            # extracted may be longer in one of them, so runs of different lengths are counted
            # separately.
            found = Counter((each.file, each.run_shards, each.worker) for each in every)
            known = [
                each
                for each in every
                if found[each.file, each.run_shards, each.worker] == max(each.run_shards, 1)
            ]
            shards = np.array([each.file for each in known], np.int64)
            there = self.job.runtime.ask(node, Indexed(self.stage.name, shards))
            log.debug("node %s still has %d of %d shards", node, there.sum(), len(every))
            for each, is_there in zip(known, there.tolist(), strict=True):
                if is_there:
                    self.resumed = True
                    self._take(each, again=True)

    def spilled_by(self) -> dict[str, tuple[int, ...]]:
        """The workers that have spill files, by node."""
        found: dict[str, set[int]] = {}
        for facts in self.done.values():
            found.setdefault(facts.node, set()).add(facts.worker)
        return {node: tuple(sorted(workers)) for node, workers in found.items()}

    def _tasks(self, missing: Sequence[int]) -> Iterator[Task]:
        runs: Iterable[Sequence[int]] = ([ordinal] for ordinal in missing)
        known = self.known
        plain = not (self.stage.changes_records or known.copies or known.positions)
        workers, buffer_bytes = (
            self.job.found.movement.workers,
            self.job.found.movement.buffer_bytes,
        )
        plain &= len(missing) >= 2 * TASKS_A_WORKER * workers  # with fewer, each is a task
        if self.stage.name == "index" and plain and can_run(self.job):
            sizes = [shard.size_bytes for shard in self.job.inputs]
            runs = runs_of(sizes, missing, workers=workers, buffer_bytes=buffer_bytes)
        # Workers take turns, so the next shard of a worker is ``workers`` places behind this shard.
        following = dict(zip(missing, missing[self.job.found.movement.workers :], strict=False))
        for run in runs:
            tasks = tuple(self._task(each, following.get(each, -1)) for each in run)
            yield tasks[0] if len(tasks) == 1 else ExtractRunTask(tasks)

    def _task(self, ordinal: int, following: int) -> ExtractTask:
        """The task that extracts a shard. ``following``: the next shard of the same worker, -1 if
        there is none."""
        shard = self.job.inputs[ordinal]
        xxh3, written_by = self.job.found.input_checksums.get(ordinal, ("", ""))
        positions, copies = self.known.positions, self.known.copies
        return ExtractTask(
            shard=ordinal,
            name=shard.name,
            size_bytes=shard.size_bytes,
            etag=shard.etag,
            stage=self.stage,
            xxh3=xxh3 if self.stage.name == "index" else "",
            written_by=written_by,
            copies=copies[ordinal] if copies else None,
            firsts=positions.firsts(ordinal),
            counts=positions.counts(ordinal),
            next_shard=self._fetched(following),
            ahead=self._ahead(ordinal),
        )

    def _fetched(self, following: int) -> int:
        """``following`` if it has to be fetched during the extraction, else -1. Only shards of
        object stores are fetched, and only if workers take turns."""
        job = self.job
        gives_turns = job.runtime.name in ("local", "ray") and not job.extractors_max
        # The buffer also holds the records that steps make, behind the shard.
        fetches = (
            self.stage.spill
            and not job.pipeline.reading.makes_shards
            and not job.pipeline.makes_records
        )
        if following < 0 or not (gives_turns and fetches):
            return -1
        here = [each.ref.is_directory for each in job.buckets.input_places]
        is_table = job.pipeline.reads_rows or job.pipeline.carrier.is_columnar
        name = job.inputs[following].name
        codec = codec_of(name) if archive_extension(name) else job.pipeline.reading.codec
        # A decoded shard takes the place in the buffer where a fetched shard would lie.
        return -1 if any(here) or is_table or codec else following

    def _ahead(self, ordinal: int) -> tuple[int, ...]:
        """The shards whose headers the worker of shard ``ordinal`` reads ahead. As long as the
        workers take turns, only one worker reads the headers of a shard ahead."""
        if not self.job.found.movement.hops:
            return ()
        step, count = self.job.found.movement.workers, len(self.job.inputs)
        first = ordinal if ordinal < step else ordinal + step * (SHARDS_AHEAD - 1)
        return tuple(range(first, min(ordinal + step * SHARDS_AHEAD, count), step))

    def _take(self, facts: ShardExtracted, *, again: bool = False) -> None:
        job = self.job
        self._check_same(facts)
        self.done[facts.shard] = facts
        if self._versions:
            self._since[facts.shard] = self._versions + 1
        if self.stage.name == "index" and not again:
            job.attempt.journal.append(facts)
        if facts.shard in self._counted:
            return  # the shard was extracted before, and its progress was reported then
        self._counted.add(facts.shard)
        if job.reporter.state.phase == "extract":
            size_bytes = job.inputs[facts.shard].size_bytes
            job.reporter.advance(
                shards=1,
                records=facts.records,
                bytes_done=size_bytes,
                members=facts.members,
                payload_bytes=facts.payload_bytes,
            )

    def _check_same(self, facts: ShardExtracted) -> None:
        """``InvariantError`` if a shard has other records when it is extracted again: the
        partitions are already ordered with the first records."""
        before = self._before.pop(facts.shard, facts)
        was, now = (
            (each.records, each.members, each.payload_bytes, each.stored_bytes)
            for each in (before, facts)
        )
        if was != now:
            name = self.job.inputs[facts.shard].name
            raise InvariantError(
                f"input shard {name} was extracted again: its counts are {now}, and were {was}"
            )

    def shard_locations(self) -> ShardLocations:
        """The node and the file of each extracted shard."""
        node_of = np.full(len(self.job.inputs), -1, np.int32)
        file_of = np.arange(len(self.job.inputs), dtype=np.int32)
        numbers = {node: number for number, node in enumerate(self._scratch_nodes)}
        for shard, facts in self.done.items():
            if facts.node not in numbers:
                numbers[facts.node] = len(self._scratch_nodes)
                self._scratch_nodes.append(facts.node)
            file_of[shard] = facts.file
            if facts.records:
                node_of[facts.file] = numbers[facts.node]
        since = np.ones(len(self.job.inputs) if self._since else 0, np.int32)
        if self._since:
            since[list(self._since)] = list(self._since.values())
        return ShardLocations(tuple(self._scratch_nodes), node_of, file_of, since)

    def flow(self) -> RecordFlow:
        """How many records were read, and how many each cause dropped or added. Call this method
        before ``tally``, which removes the counts."""
        flow, names = RecordFlow(), [place.name for place in self.job.buckets.input_places]
        for shard, facts in sorted(self.done.items()):
            counts = facts.tally.counts
            read = counts.get(FLOW_READ, facts.records)
            name = input_of(self.job.inputs[shard].name, names)
            flow.read[name] = flow.read.get(name, 0) + read
            for kind, count in counts.items():
                if kind.startswith(FLOW_DROPPED):
                    flow.drop(kind.removeprefix(FLOW_DROPPED), count)
                elif kind.startswith(FLOW_ADDED):
                    flow.add(kind.removeprefix(FLOW_ADDED), count)
        return flow

    def tally(self) -> Tally:
        """The counts of all shards, merged in the order of the shards and removed from ``done``.
        ``TransformError`` if steps failed at too many records."""
        total = Tally()
        for shard in sorted(self.done):
            facts = self.done[shard]
            total.merge(facts.tally)
            self.done[shard] = replace(facts, tally=Tally())
        total, found = total.without(FITS)
        fits = set(found)
        total, _ = total.without(FLOW)
        refuse_too_many_errors(self.job, self.done.values(), total)
        _warn_of_what_fits_nothing(self.job, fits)
        return total


def is_even(job: Job) -> bool:
    """Whether partitions need no splitters: hashes of keys spread records evenly, or there is only
    one partition."""
    return job.pipeline.is_spread_evenly or job.found.movement.partitions == 1


def extract(
    job: Job, known: Facts, *, dry: bool = False, before: Iterable[ShardExtracted] = ()
) -> Extraction:
    """Make the last pass over all inputs: write the record index, and the spill if payload has to
    move. If ``dry``, spill only where payload has to be measured for the plan. ``before``: shards
    that an earlier attempt extracted; those in scratch are not extracted again."""
    spill = job.found.movement.way.spills
    stage = Stage(
        "index",
        partitions=job.found.movement.partitions if is_even(job) or known.splitters else 1,
        spill=spill and (not dry or job.pipeline.measures_encoded),
        splitters=known.splitters,
        renames=known.renames,
        classes=known.classes,
        left_out=known.left_out,
        places=known.places,
        borders=known.borders,
    )
    extraction = Extraction(job, stage, known)
    extraction.keep(before)
    retry_after_lost_scratch(extraction, lambda: None)
    for shard, facts in extraction.done.items():
        job.outcome.input_records[shard] = facts.records
    job.outcome.flow = extraction.flow()
    job.reporter.note(extraction.tally())
    return extraction


def _warn_of_what_fits_nothing(job: Job, fits: Collection[str]) -> None:
    """Warn of extensions and lists of keys in the spec that match no record: they are most likely
    misspelt. Columns that tables lack are refused instead."""
    if job.pipeline.reads_rows:
        return
    compared = job.pipeline.compared
    listed = [each for step in job.pipeline.steps for each in step.listed]
    listed += [f"{DEDUPLICATE}: {each}" for each in (compared.extensions if compared else ())]
    nothing = [each for each in dict.fromkeys(listed) if each not in fits]
    if nothing:
        job.reporter.warn(
            "fits_nothing",
            f"the spec lists keys or extensions that no record has: {first_few(nothing)}",
        )


def refuse_too_many_errors(job: Job, extracted: Iterable[ShardExtracted], tally: Tally) -> None:
    """``TransformError`` if steps failed at more records than ``max_errors`` allows."""
    failed, failures = tally.counts.get("failed_records", 0), job.pipeline.failures
    if not failed:
        return
    given = sum(facts.transformed for facts in extracted)
    allowed = failures.errors_max(given)
    if allowed is not None and failed > allowed:
        first = ", ".join(tally.samples["failed_records"][:3])
        raise TransformError(
            f"steps failed at {failed:,} of {given:,} records, and max_errors is "
            f"{failures.max_errors}; the first are {first}",
            hint="mend the step, or set a larger max_errors",
        )


SMALL_BYTES = 4 << 20
RUN_BYTES = 32 << 20
TASKS_A_WORKER = 8
"""The least number of tasks for each worker, so that all workers end at about the same time."""


def can_run(job: Job) -> bool:
    """Whether a job's input shards may be extracted in runs: the job has no steps, and no operator
    that needs each shard by itself."""
    from dsort.workers.operators.all_operators import allow_runs

    pipeline = job.pipeline
    more_than_keys = (
        pipeline.steps,
        job.found.input_checksums,
        pipeline.reading.makes_shards,
        pipeline.result.hashes_content,
        pipeline.compared,
        pipeline.has_late_outputs,
    )
    return (
        not job.found.movement.way.reads_ranges
        and all(place.ref.is_directory for place in job.buckets.input_places)
        and {*pipeline.reading.containers} == {pipeline.carrier}
        and bool(pipeline.carrier.hops)
        and pipeline.algorithm.joins
        and not pipeline.algorithm.placement
        and not any(more_than_keys)
        and allow_runs(pipeline)
    )


def runs_of(
    sizes: Sequence[int], shards: Sequence[int], *, workers: int, buffer_bytes: int
) -> Iterator[Sequence[int]]:
    """Split ``shards`` (ascending ordinals) into runs of consecutive small shards; every other
    shard is a run of its own. ``sizes``: the size of every input shard, in bytes."""
    most = min(RUN_SHARDS_MAX, len(shards) // (TASKS_A_WORKER * max(workers, 1)))
    room = min(RUN_BYTES, buffer_bytes)  # under spill, the whole run is in the buffer
    run: list[int] = []
    run_bytes = 0
    for shard in shards:
        follows = run and shard == run[-1] + 1 and sizes[shard] <= SMALL_BYTES
        if run and not (follows and len(run) < most and run_bytes + sizes[shard] <= room):
            yield run
            run, run_bytes = [], 0
        run.append(shard)
        run_bytes += sizes[shard]
        if sizes[shard] > SMALL_BYTES:
            yield run
            run, run_bytes = [], 0
    if run:
        yield run
