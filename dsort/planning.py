"""The phases that decide: survey, extract, duplicates, order, cut. Run by tasks on the runtime.

Nothing here looks at payload; what workers answer are counts and positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dsort.core.buckets import pick_splitters
from dsort.core.columns import BytesColumn
from dsort.core.duplicates import new_keys
from dsort.core.outputs import TemplateExhaustedError
from dsort.core.plan import OpenShard, OutputShard, Piece, merge_pieces
from dsort.core.record_index import SortKeys
from dsort.core.tally import SAMPLES_MAX, Tally
from dsort.errors import DuplicateError, InvariantError, SpecError, SpecProblem
from dsort.job import Job
from dsort.workers.column_file import ColumnFile
from dsort.workers.index_store import IndexStore
from dsort.workers.tasks import (
    CutDone,
    CutTask,
    DuplicatesDone,
    DuplicatesTask,
    ExtractDone,
    ExtractTask,
    OrderDone,
    OrderTask,
    Task,
)

__all__ = ["Plan", "extract", "make_plan"]

SURVEY_ROWS_MAX = 2_000_000
DROP_FILE, RENAME_FILE, SPLITTERS_FILE = "drop.col", "rename.col", "splitters.pickle"
HASH_BYTES = 40
"""Memory a record takes in the search for duplicates: hash, positions, and their sorted copies."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The shuffle plan: every output shard with its name; the records' order is in scratch."""

    shards: list[OutputShard]
    names: list[str]
    records: int
    members: int
    payload_bytes: int
    stored_bytes: int


def extract(job: Job, *, dry: bool = False) -> list[ExtractDone]:
    """Extract all input shards: index, and spill where payload has to move (not if ``dry``).

    Sort keys that are no hashes, and new names for duplicate keys, have to be known before payload
    is dealt out to buckets: then a survey (index only) goes first.
    """
    spill = job.moving.way == "spill"
    hashed = job.spec.algorithm.kind in ("shuffle", "md5") and job.keymap is None
    renames = job.spec.config.duplicate_keys == "rename"
    even = hashed or job.moving.buckets == 1
    total = sum(shard.size_bytes for shard in job.inputs)
    passes = 1
    if renames or (spill and not even):
        passes = 2
    job.expect(shards=passes * len(job.inputs), bytes_total=passes * total)
    splitters = rename_file = ""
    if passes == 2:
        surveyed = _extract_pass(job, "survey", spill=False, buckets=1)
        if renames:
            rename_file = _rename_duplicates(job, "survey", surveyed)
        if not even:
            splitters = _pick_splitters(job)
    buckets = job.moving.buckets if even or splitters else 1
    done = _extract_pass(
        job,
        "index",
        spill=spill and not dry,
        buckets=buckets,
        splitters=splitters,
        renames=rename_file,
    )
    tally = Tally()
    for facts in done:
        job.input_records[facts.shard] = facts.records
        tally.merge(facts.tally)
    job.note(tally)
    return done


def _extract_pass(
    job: Job, stage: str, *, spill: bool, buckets: int, splitters: str = "", renames: str = ""
) -> list[ExtractDone]:
    tasks: Iterator[Task] = (
        ExtractTask(
            shard=ordinal,
            name=shard.name,
            size_bytes=shard.size_bytes,
            etag=shard.etag,
            stage=stage,
            spill=spill,
            buckets=buckets,
            splitters=splitters,
            renames=renames,
        )
        for ordinal, shard in enumerate(job.inputs)
    )
    done: dict[int, ExtractDone] = {}
    workers_max = job.spec.extract_concurrency_max_limit or None
    for _, facts in job.runtime.run(tasks, workers_max=workers_max):
        assert isinstance(facts, ExtractDone)
        done[facts.shard] = facts
        size_bytes = job.inputs[facts.shard].size_bytes
        job.advance(shards=1, records=facts.records, bytes_done=size_bytes)
    return [done[ordinal] for ordinal in range(len(job.inputs))]


def _pick_splitters(job: Job) -> str:
    """Where buckets begin, from a sample of the survey; "" where there is nothing to part."""
    store = IndexStore(job.scratch_path)
    count = len(job.inputs)
    rows_max = max(SURVEY_ROWS_MAX // max(count, 1), 16)
    samples, shards, ordinals, weights = [], [], [], []
    for shard in range(count):
        sort, ordinal, weight = store.survey_sample("survey", shard, rows_max)
        if sort.count:
            samples.append(sort)
            shards.append(np.full(sort.count, shard, np.int64))
            ordinals.append(ordinal)
            weights.append(weight)
    if not samples:
        return ""
    splitters = pick_splitters(
        SortKeys.concat(samples),
        np.concatenate(shards),
        np.concatenate(ordinals),
        np.concatenate(weights),
        job.moving.buckets,
        decreasing=job.spec.algorithm.decreasing,
    )
    store.write_splitters(SPLITTERS_FILE, splitters)
    return SPLITTERS_FILE


def make_plan(job: Job, extracted: list[ExtractDone]) -> Plan:
    """Order all buckets and cut them into output shards; check that nothing is lost."""
    shards = tuple(facts.shard for facts in extracted if facts.records)
    records = sum(facts.records for facts in extracted)
    dropped, drop_file = _settle_duplicates(job, extracted)
    used_buckets = _bucket_count(job, shards)
    ordered = _order(job, shards, used_buckets, drop_file)
    _check_nothing_lost(records, dropped, extracted, ordered)
    payload_total = sum(facts.payload_bytes for facts in ordered)
    kept = sum(facts.records for facts in ordered)
    rule = job.names.cut_rule(
        size_bytes=job.spec.output_shard_size,
        records=job.spec.output_shard_records,
        count=job.spec.output_shard_count,
        payload_total=payload_total,
        records_total=kept,
    )
    pieces: list[Piece] = []
    state = OpenShard()
    for facts in ordered:
        if facts.records:
            for _, cut in job.runtime.run([CutTask(facts.bucket, rule, state)]):
                assert isinstance(cut, CutDone)
                pieces.extend(cut.pieces)
                state = cut.state
    outputs = merge_pieces(pieces, count=rule.count)
    if sum(shard.records for shard in outputs) != kept:
        raise InvariantError(f"{kept} records were cut into {len(outputs)} shards that have fewer")
    return Plan(
        shards=outputs,
        names=_names(job, outputs),
        records=kept,
        members=sum(shard.members for shard in outputs),
        payload_bytes=payload_total,
        stored_bytes=sum(shard.stored_bytes for shard in outputs),
    )


def _names(job: Job, outputs: list[OutputShard]) -> list[str]:
    field = "ekm" if job.keymap else "output_format"
    try:
        return job.names.names(outputs)
    except TemplateExhaustedError as error:
        hint = "use a larger template, or a larger output_shard_size"
        raise SpecError([SpecProblem(field, str(error), hint)]) from None
    except ValueError as error:
        raise SpecError([SpecProblem(field, str(error))]) from None


def _bucket_count(job: Job, shards: tuple[int, ...]) -> int:
    if not shards:
        return 0
    path = job.scratch_path / f"index-{shards[0]}.col"
    return len(ColumnFile(path).array("bucket_offsets")) - 1


def _order(job: Job, shards: tuple[int, ...], buckets: int, drop_file: str) -> list[OrderDone]:
    tasks: Iterator[Task] = (OrderTask(bucket, shards, drop_file) for bucket in range(buckets))
    done: dict[int, OrderDone] = {}
    for _, facts in job.runtime.run(tasks):
        assert isinstance(facts, OrderDone)
        done[facts.bucket] = facts
        job.advance(records=facts.records, bytes_done=facts.stored_bytes)
    return [done[bucket] for bucket in range(buckets)]


def _check_nothing_lost(
    records: int, dropped: int, extracted: list[ExtractDone], ordered: list[OrderDone]
) -> None:
    """Every record that was extracted is in the plan, up to what the spec asked to drop."""
    kept = sum(facts.records for facts in ordered)
    left_out = sum(facts.dropped for facts in ordered)
    if (left_out, kept) != (dropped, records - dropped):
        raise InvariantError(
            f"{records} records were extracted and {dropped} are to be dropped, but {kept} are "
            f"planned and {left_out} were dropped"
        )
    stored = sum(facts.stored_bytes for facts in extracted)
    planned = sum(facts.stored_bytes for facts in ordered)
    if planned > stored or (not dropped and planned != stored):
        raise InvariantError(f"{stored} bytes were extracted, but {planned} are planned")


# -- duplicate keys ------------------------------------------------------------------------------


def _settle_duplicates(job: Job, extracted: list[ExtractDone]) -> tuple[int, str]:
    """(records to drop, the file that names them) as ``duplicate_keys`` says; warns or aborts."""
    reaction = job.spec.config.duplicate_keys
    if reaction in ("ignore", "rename"):  # renamed ones were settled before the payload moved
        return 0, ""
    found = _find_duplicates(job, "index", extracted, want_rows=reaction == "drop")
    count = sum(part.count for part in found)
    if count == 0:
        return 0, ""
    samples = _samples(job, found)
    if reaction == "abort":
        raise DuplicateError(
            f"{count} records have the key of an earlier record: {', '.join(samples[:3])}",
            hint="duplicate_keys: rename or drop settles them, warn lets them be",
        )
    tally = Tally()
    tally.add("duplicate_keys_dropped" if reaction == "drop" else "duplicate_keys", count, samples)
    job.note(tally)
    if reaction != "drop":
        return 0, ""
    columns = [_positions(job, part.part) for part in found if part.count]
    shard = np.concatenate([file.array("shard") for file in columns])
    ordinal = np.concatenate([file.array("ordinal") for file in columns])
    order = np.lexsort((ordinal, shard))
    store = IndexStore(job.scratch_path)
    store.write_positions(DROP_FILE, shard[order], ordinal[order], ordinal[order] * 0, None)
    return count, DROP_FILE


def _rename_duplicates(job: Job, stage: str, extracted: list[ExtractDone]) -> str:
    """Choose new keys for all duplicates; the file that lists them, or "" if there are none."""
    found = _find_duplicates(job, stage, extracted, want_rows=True)
    count = sum(part.count for part in found)
    if count == 0:
        return ""
    store = IndexStore(job.scratch_path)
    columns = [_positions(job, part.part) for part in found if part.count]
    shard = np.concatenate([file.array("shard") for file in columns])
    ordinal = np.concatenate([file.array("ordinal") for file in columns])
    nth = np.concatenate([file.array("nth") for file in columns])
    keys = BytesColumn.concat(file.bytes_column("keys") for file in columns)
    order = np.lexsort((ordinal, shard))
    taken = np.concatenate([store.key_hashes(stage, facts.shard)[0] for facts in extracted])
    fresh = new_keys(keys.take(order).tolist(), nth[order], np.unique(taken))
    store.write_positions(
        RENAME_FILE, shard[order], ordinal[order], nth[order], BytesColumn.of(fresh)
    )
    tally = Tally()
    samples = (
        f"{job.inputs[int(shard[row])].name}: {_shown(keys[int(row)])} → {_shown(new)}"
        for row, new in zip(order[:SAMPLES_MAX], fresh, strict=False)
    )
    tally.add("duplicate_keys_renamed", count, samples)
    job.note(tally)
    return RENAME_FILE


def _find_duplicates(
    job: Job, stage: str, extracted: list[ExtractDone], *, want_rows: bool
) -> list[DuplicatesDone]:
    """Search by ranges of the key hash, each small enough for one worker's memory."""
    shards = tuple(facts.shard for facts in extracted if facts.records)
    records = sum(facts.records for facts in extracted)
    if not shards:
        return []
    workers = job.moving.workers
    parts = max(workers, -(-records * HASH_BYTES // max(job.moving.buffer_bytes, 1)))
    bounds = [part * (1 << 64) // parts for part in range(parts)] + [0]
    tasks: Iterator[Task] = (
        DuplicatesTask(part, bounds[part], bounds[part + 1], shards, stage, want_rows)
        for part in range(parts)
    )
    found: dict[int, DuplicatesDone] = {}
    for _, done in job.runtime.run(tasks):
        assert isinstance(done, DuplicatesDone)
        found[done.part] = done
    return [found[part] for part in range(parts)]


def _samples(job: Job, found: list[DuplicatesDone]) -> list[str]:
    """Some duplicates' names, the same whatever the number of parts."""
    rows = sorted(sample for part in found for sample in part.samples)
    return [f"{job.inputs[shard].name}: {_shown(key)}" for shard, _, key in rows[:SAMPLES_MAX]]


def _positions(job: Job, part: int) -> ColumnFile:
    return IndexStore(job.scratch_path).positions(f"duplicates-{part}.col")


def _shown(key: bytes) -> str:
    return key.decode("utf-8", "backslashreplace")
