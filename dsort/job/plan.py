"""The phases that decide: survey, extract, duplicates, order, cut. Run by tasks on the runtime.

Nothing here looks at payload; what workers answer are counts and positions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import xxhash

from dsort.data.tally import Tally, tally_rows, tally_told
from dsort.errors import InvariantError, SpecError, SpecProblem, StorageError
from dsort.job.duplicates import (
    RENAME_FILE,
    Dropped,
    Renamed,
    rename_duplicates,
    settle_duplicates,
)
from dsort.job.extract import SPLITTERS_FILE, Extraction, answers, pick_bucket_splitters, steadily
from dsort.job.job import Job
from dsort.job.order import Ordering
from dsort.job.output_names import TemplateExhaustedError
from dsort.job.reactions import store_reactions
from dsort.order.cut import CutRule, OpenShard, OutputShard, Piece, merge_pieces
from dsort.order.mixing_counts import MixingTally, judge_mixing
from dsort.scratch.index import check_renames, check_splitters
from dsort.sizes import format_bytes
from dsort.storage.small_objects import parse_json
from dsort.workers.tasks import CutDone, CutTask, ExtractDone

__all__ = ["Plan", "extract", "make_plan"]

OVERHEAD_TOLD_FROM = 1.5
"""So many times their payload output shards may be large without a word."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The shuffle plan: every output shard with its name; the records' order is in scratch."""

    shards: list[OutputShard]
    names: list[str]
    records: int
    members: int
    payload_bytes: int
    stored_bytes: int

    def digest(self) -> str:
        """The same for two plans of the same output shards."""
        state = xxhash.xxh3_128()
        for shard, name in zip(self.shards, self.names, strict=True):
            state.update(f"{name}\0{shard.records}\0{shard.stored_bytes}\0".encode())
        return state.hexdigest()


def extract(job: Job, *, dry: bool = False, known: Iterable[ExtractDone] = ()) -> Extraction:
    """Extract all input shards: index, and spill where payload has to move (not if ``dry``).

    Sort keys that are no hashes, and new names for duplicate keys, have to be known before payload
    is dealt out to buckets: then a survey (index only) goes first. ``known``: what an earlier
    attempt extracted, to be used as far as it is still there.
    """
    spill = job.moving.way == "spill"
    hashed = job.spec.algorithm.kind in ("shuffle", "md5") and job.keymap is None
    even = hashed or job.moving.buckets == 1
    splitters = rename_file = ""
    if job.spec.config.duplicate_keys == "rename" or (spill and not even):
        splitters, rename_file = _survey(job, even=even)
    else:
        _expect(job, passes=1)
    extraction = Extraction(
        job,
        "index",
        buckets=job.moving.buckets if even or splitters else 1,
        spill=spill and not dry,
        splitters=splitters,
        renames=rename_file,
    )
    extraction.keep(known)
    steadily(extraction, lambda: None)
    for shard, facts in extraction.done.items():
        job.input_records[shard] = facts.records
    job.note(extraction.tally())
    return extraction


def _survey(job: Job, *, even: bool) -> tuple[str, str]:
    """(file of splitters, file of new keys), each "" where there is nothing to part or rename.

    A later attempt goes on with what was found here, for its spill is parted by that.
    """
    marker = f"survey-{job.moving.buckets}.json"
    kept = job.kept(marker)
    if kept is not None:
        splitters, renames, tally = _survey_told(kept, f"{marker} of job {job.job_id}")
        shared = {name: job.kept(name) for name in filter(None, (splitters, renames))}
        if None not in shared.values():
            _check_shared(job, shared)
            for name, data in shared.items():
                job.runtime.share(name, data or b"")
            _expect(job, passes=1)
            job.note(tally)
            return splitters, renames
    _expect(job, passes=2)
    survey = Extraction(job, "survey")
    renamed, splitters = Renamed(), ""
    if job.spec.config.duplicate_keys == "rename":
        renamed = steadily(survey, lambda: rename_duplicates(job, survey))
    if not even:
        splitters = steadily(survey, lambda: pick_bucket_splitters(job, survey))
    job.note(renamed.tally)
    found = {"files": [splitters, renamed.file], "tally": tally_rows(renamed.tally)}
    job.keep(marker, json.dumps(found).encode())
    return splitters, renamed.file


def _check_shared(job: Job, shared: Mapping[str, bytes | None]) -> None:
    """``StorageError`` for files that workers could make nothing of."""
    shards, decreasing = len(job.inputs), job.spec.algorithm.decreasing
    for name, data in shared.items():
        what = f"{name} of job {job.job_id}"
        if name == SPLITTERS_FILE:
            check_splitters(data or b"", what, shards=shards, decreasing=decreasing)
        else:
            check_renames(data or b"", what, shards=shards)


def _survey_told(data: bytes, what: str) -> tuple[str, str, Tally]:
    """(file of splitters, file of new keys, what was counted). Others may have written it: they do
    not choose under which names files come to homes."""
    told = parse_json(data, what)
    try:
        splitters, renames = told["files"]
        tally = tally_told(told["tally"])
        if splitters not in ("", SPLITTERS_FILE) or renames not in ("", RENAME_FILE):
            raise ValueError("it names other files than a survey makes")
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        hint = "the job cannot be resumed; start it again"
        raise StorageError(f"{what} is damaged: {error}", hint=hint) from None
    return splitters, renames, tally


def _expect(job: Job, *, passes: int) -> None:
    total = sum(shard.size_bytes for shard in job.inputs)
    job.expect(shards=passes * len(job.inputs), bytes_total=passes * total)


def make_plan(job: Job, extraction: Extraction) -> tuple[Plan, Ordering]:
    """Order all buckets and cut them into output shards; check that nothing is lost."""

    def settle() -> Dropped:
        dropped = settle_duplicates(job, extraction)
        store_reactions(job, extraction, dropped.found)
        return dropped

    dropped = steadily(extraction, settle)
    job.note(dropped.tally)
    ordering = Ordering(job, extraction, dropped.file)
    steadily(ordering, lambda: None)
    _check_nothing_lost(dropped, extraction, ordering)
    ordered = ordering.in_order()
    payload_total = sum(facts.payload_bytes for facts in ordered)
    kept = sum(facts.records for facts in ordered)
    counts_file = job.spec.output_shard_size_counts == "file"
    rule = job.names.cut_rule(
        size_bytes=job.spec.output_shard_size,
        records=job.spec.output_shard_records,
        count=job.spec.output_shard_count,
        bytes_total=sum(facts.stored_bytes for facts in ordered) if counts_file else payload_total,
        records_total=kept,
        counts_file=counts_file,
    )
    pieces, mixing = steadily(ordering, lambda: _cut(job, ordering, rule))
    outputs = merge_pieces(pieces, count=rule.count)
    if sum(shard.records for shard in outputs) != kept:
        raise InvariantError(f"{kept} records were cut into {len(outputs)} shards that have fewer")
    plan = Plan(
        shards=outputs,
        names=_names(job, outputs),
        records=kept,
        members=sum(shard.members for shard in outputs),
        payload_bytes=payload_total,
        stored_bytes=sum(shard.stored_bytes for shard in outputs),
    )
    _warn_of_overhead(job, plan)
    job.mixing = judge_mixing(
        mixing.table(len(outputs)),
        input_shards=len(job.inputs),
        output_shards=len(outputs),
        order=job.order,
    )
    return plan, ordering


def _warn_of_overhead(job: Job, plan: Plan) -> None:
    """Of small members, headers and padding are most of a shard, which its size does not count."""
    if job.spec.output_shard_size is None or job.spec.output_shard_size_counts == "file":
        return
    if plan.records and plan.stored_bytes >= OVERHEAD_TOLD_FROM * plan.payload_bytes:
        job.warn(
            "output_shard_size",
            f"the output shards take {format_bytes(plan.stored_bytes)}, but their payload is "
            f"{format_bytes(plan.payload_bytes)}, which is what output_shard_size counts "
            "(output_shard_size_counts: file counts headers and padding, too)",
        )


def _cut(job: Job, ordering: Ordering, rule: CutRule) -> tuple[list[Piece], MixingTally]:
    """The pieces of all buckets, each cut where the one before it ended, and how they mix the input
    shards."""
    pieces: list[Piece] = []
    mixing = MixingTally(len(job.inputs))
    state = OpenShard()
    for facts in ordering.in_order():
        if facts.records:
            home = ordering.home_of(facts.bucket)
            task = CutTask(facts.bucket, home, rule, state, mixing.grid(state))
            for _, cut in answers(job, [task]):
                assert isinstance(cut, CutDone)
                pieces.extend(cut.pieces)
                mixing.add(cut.mixing)
                state = cut.state
    return pieces, mixing


def _names(job: Job, outputs: list[OutputShard]) -> list[str]:
    field = "ekm" if job.keymap else "output_format"
    try:
        return job.names.names(outputs)
    except TemplateExhaustedError as error:
        hint = "use a larger template, or a larger output_shard_size"
        raise SpecError([SpecProblem(field, str(error), hint)]) from None
    except ValueError as error:
        raise SpecError([SpecProblem(field, str(error))]) from None


def _check_nothing_lost(dropped: Dropped, extraction: Extraction, ordering: Ordering) -> None:
    """Every record that was extracted is in the plan, up to what the spec asked to drop."""
    extracted, ordered = extraction.done.values(), ordering.in_order()
    records = sum(facts.records for facts in extracted)
    kept = sum(facts.records for facts in ordered)
    left_out = sum(facts.dropped for facts in ordered)
    if (left_out, kept) != (dropped.count, records - dropped.count):
        raise InvariantError(
            f"{records} records were extracted and {dropped.count} are to be dropped, but {kept} "
            f"are planned and {left_out} were dropped"
        )
    stored = sum(facts.stored_bytes for facts in extracted)
    planned = sum(facts.stored_bytes for facts in ordered)
    if planned > stored or (not dropped.count and planned != stored):
        raise InvariantError(f"{stored} bytes were extracted, but {planned} are planned")
