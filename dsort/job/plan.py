"""The phases that decide: survey, extract, duplicates, order, cut. Run by tasks on the runtime.

Nothing here looks at payload; what workers answer are counts and positions. Records whose key an
earlier record has are found by ranges of the key hash.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace

import xxhash

from dsort.data.packed_texts import PackedTexts
from dsort.data.tally import Tally, parse_tally, tally_rows
from dsort.errors import DsortError, InvariantError, SpecError, SpecProblem, StorageError
from dsort.job.borders import choose_borders, readings_for_borders
from dsort.job.classes import CLASSES_FILE, count_job_classes
from dsort.job.cutting import cut_partitions, cut_rule
from dsort.job.duplicates import RENAME_FILE, Dropped, Renamed, rename_duplicates, settle_duplicates
from dsort.job.encoded_sizes import encoded_sizes, measured_sizes, run_rule
from dsort.job.equalize import equal_pieces
from dsort.job.events import OutputCount
from dsort.job.extract import (
    SPLITTERS_FILE,
    Extraction,
    pick_partition_splitters,
    retry_after_lost_scratch,
    shard_splitters,
)
from dsort.job.facts import refuse_damage_in
from dsort.job.job import Job
from dsort.job.joins import choose_left_out, readings_for_join, settle_join
from dsort.job.mix import choose_copies
from dsort.job.ordering import Ordering
from dsort.job.output_names import TemplateExhaustedError
from dsort.job.positions import count_positions, readings_left
from dsort.job.reactions import append_reactions, store_reactions
from dsort.job.schemas import agreed_schema, late_schemas, with_ends
from dsort.job.shard_readers import ReaderCounts, reader_counts
from dsort.naming.names import first_few
from dsort.order.cut import (
    CutRule,
    EncodedSizes,
)
from dsort.order.mixing_counts import judge_mixing
from dsort.order.output_shards import OutputShards, Pieces, merge_pieces
from dsort.scratch.class_table import check_class_table
from dsort.scratch.index import check_splitters
from dsort.scratch.positions import check_renames
from dsort.sizes import format_bytes
from dsort.storage.small_objects import parse_json
from dsort.workers.tasks import (
    OrderDone,
    ShardExtracted,
    Stage,
)

OVERHEAD_WARNED_FROM = 1.5
"""So many times their payload output shards may be large without a word."""
OVERHEAD_TEXT = (
    "the output shards take {stored}, but their payload is {payload}, which is what "
    "output_shard_size counts (output_shard_size_counts: file counts headers and padding, too)"
)
OVERHEAD_IGNORED_BYTES = 4 * 10_240
"""Shards of a few tar blocks (20 x 512 bytes) are mostly header and padding, whatever their size
counts: the warning is about shards that are larger on average."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The shuffle plan: every output shard with its name; the records' order is in scratch."""

    shards: OutputShards
    names: Sequence[str]
    records: int
    members: int
    payload_bytes: int
    stored_bytes: int
    schema: str = ""  # of all records, where their container has such a thing
    late_schemas: tuple[str, ...] = ()  # by output, of those that are converted as they are written

    def by_output(self, names: Sequence[str]) -> tuple[OutputCount, ...]:
        """What each of several outputs gets; empty for one. ``names``: of all."""
        if len(names) < 2:
            return ()
        sums = {name: [0, 0, 0, 0] for name in names}
        groups, file_bytes = self.shards.column("group"), self.shards.file_bytes
        for group, name in enumerate(names):
            chosen = groups == group
            sums[name] = [
                int(chosen.sum()),
                int(self.shards.column("records")[chosen].sum()),
                int(self.shards.column("payload_bytes")[chosen].sum()),
                int(file_bytes[chosen].sum()),
            ]
        return tuple(OutputCount(name, *own) for name, own in sums.items())

    def readers(self, names: Sequence[str]) -> tuple[ReaderCounts, ...]:
        """How many workers can read each output. ``names``: of several outputs."""
        groups = self.shards.column("group").tolist()
        records = self.shards.column("records").tolist()
        return reader_counts(
            (names[group] if names else "", count)
            for group, count in zip(groups, records, strict=True)
        )

    def digest(self) -> str:
        """The same for two plans of the same output shards."""
        state = xxhash.xxh3_128()
        columns = (self.shards.column(name).tolist() for name in ("records", "stored_bytes"))
        for name, records, stored_bytes in zip(self.names, *columns, strict=True):
            state.update(f"{name}\0{records}\0{stored_bytes}\0".encode())
        return state.hexdigest()


@dataclass(frozen=True, slots=True)
class _Surveyed:
    """Shared files that a survey made, "" where there is nothing to part, rename or number: of
    splitters, of new keys, of classes."""

    splitters: str = ""
    renames: str = ""
    classes: str = ""


_SURVEY_FILES = (SPLITTERS_FILE, RENAME_FILE, CLASSES_FILE)


def extract(job: Job, *, dry: bool = False, known: Iterable[ShardExtracted] = ()) -> Extraction:
    """Extract all input shards: index, and spill where payload has to move. If ``dry``, only where
    it has to be measured for the plan.

    Sort keys that are no hashes, and new names for duplicate keys, have to be known before payload
    is dealt out to partitions: then a survey (index only) goes first. ``known``: what an earlier
    attempt extracted, to be used as far as it is still there.
    """
    spill = job.movement.kind == "spill"
    hashed = job.pipeline.algorithm.is_spread_evenly and job.pipeline.keymap is None
    even = hashed or job.movement.partitions == 1
    found = _Surveyed()
    kept = spill and not even and job.spec.keep_shards  # needs no look at the records
    placed = job.spec.algorithm.build().placement is not None
    renames = job.spec.config.duplicate_keys == "rename"
    surveyed = renames or placed or (spill and not even and not kept)
    readings = readings_left(job) + readings_for_borders(job) + readings_for_join(job)
    _expect(job, passes=1 + readings + surveyed)
    positions = count_positions(job)
    left_out, places = choose_left_out(job, positions)
    copies = choose_copies(job, positions)
    borders = choose_borders(job, copies, positions)
    _expect(job, passes=1 + surveyed)
    if surveyed:
        stage = Stage(
            "survey",
            left_out=left_out if places else "",
            places=places,
            borders=borders,
        )
        survey = Extraction(job, stage, copies=copies, positions=positions)
        found = _survey(job, survey, even=even or kept)
    if kept:
        found = replace(found, splitters=shard_splitters(job))
    stage = Stage(
        "index",
        partitions=job.movement.partitions if even or found.splitters else 1,
        spill=spill and (not dry or job.pipeline.measures_encoded),
        splitters=found.splitters,
        renames=found.renames,
        classes=found.classes,
        left_out=left_out,
        places=places,
        borders=borders,
    )
    extraction = Extraction(job, stage, copies=copies, positions=positions)
    extraction.keep(known)
    retry_after_lost_scratch(extraction, lambda: None)
    for shard, facts in extraction.done.items():
        job.input_records[shard] = facts.records
    job.flow = extraction.flow()
    job.note(extraction.tally())
    return extraction


def _survey(job: Job, survey: Extraction, *, even: bool) -> _Surveyed:
    """What has to be known before payload is dealt out.

    A later attempt goes on with what was found here, for its spill is parted by that.
    """
    marker = f"survey-{job.movement.partitions}.json"
    kept = job.retained(marker)
    if kept is not None:
        known, tally, digests = _parse_survey(kept, f"{marker} of job {job.job_id}")
        shared = {name: job.retained(name) for name in filter(None, astuple(known))}
        if None not in shared.values():
            _check_unchanged(job, shared, digests)
            _check_shared(job, shared)
            for name, data in shared.items():
                job.runtime.share(name, data or b"")
            _expect(job, passes=1)
            job.note(tally)
            return known
    renamed, splitters, classes = Renamed(), "", ""
    if job.spec.config.duplicate_keys == "rename":
        renamed = retry_after_lost_scratch(survey, lambda: rename_duplicates(job, survey))
    if not even:
        splitters = retry_after_lost_scratch(survey, lambda: pick_partition_splitters(job, survey))
    if job.spec.algorithm.build().placement is not None:
        classes = retry_after_lost_scratch(survey, lambda: count_job_classes(job, survey))
    job.note(renamed.tally)
    found = _Surveyed(splitters, renamed.file, classes)
    content = {
        "files": [*astuple(found)],
        "digests": [job.digests.get(name, "") for name in astuple(found)],
        "tally": tally_rows(renamed.tally),
    }
    job.retain(marker, json.dumps(content).encode())
    return found


def _check_unchanged(
    job: Job, shared: Mapping[str, bytes | None], digests: Mapping[str, object]
) -> None:
    """``StorageError`` for a file that is another one than the survey made: what was extracted by
    that one would not fit what is extracted by this one."""
    for name, data in shared.items():
        if digests[name] != xxhash.xxh3_128_hexdigest(data or b""):
            raise StorageError(
                f"{name} of job {job.job_id} was changed since the job wrote it",
                hint="the job cannot be resumed; start it again",
            )


def _check_shared(job: Job, shared: Mapping[str, bytes | None]) -> None:
    """``StorageError`` for files that workers could make nothing of."""
    shards, decreasing = len(job.inputs), job.spec.algorithm.decreasing
    for name, data in shared.items():
        what = f"{name} of job {job.job_id}"
        if name == SPLITTERS_FILE:
            check_splitters(data or b"", what, shards=shards, decreasing=decreasing)
        elif name == CLASSES_FILE:
            check_class_table(data or b"", what, shards=shards)
        else:
            check_renames(data or b"", what, shards=shards)


def _parse_survey(data: bytes, what: str) -> tuple[_Surveyed, Tally, dict[str, object]]:
    """(what was found, what was counted, the XXH3-128 of each file). Others may have written it:
    they do not choose under which names files come to nodes."""
    survey = parse_json(data, what)
    with refuse_damage_in(what):
        found = _Surveyed(*survey["files"])
        tally = parse_tally(survey["tally"])
        if any(
            name not in ("", made) for name, made in zip(astuple(found), _SURVEY_FILES, strict=True)
        ):
            raise ValueError("it names other files than a survey makes")
        digests = dict(zip(survey["files"], survey["digests"], strict=True))
    return found, tally, digests


def _expect(job: Job, *, passes: int) -> None:
    """So many passes are to come, besides what was read already."""
    total = sum(shard.size_bytes for shard in job.inputs)
    before = job.state.phases["extract"]
    job.expect(
        shards=before.shards + passes * len(job.inputs), bytes_total=before.bytes + passes * total
    )


def make_plan(job: Job, extraction: Extraction) -> tuple[Plan, Ordering]:
    """Order all partitions and cut them into output shards; check that nothing is lost."""

    def drop() -> Dropped:
        if job.pipeline.join is not None:  # whose keys are settled as they are ordered
            return Dropped()
        dropped = settle_duplicates(job, extraction)
        store_reactions(job, extraction, dropped.found)
        return dropped

    dropped = retry_after_lost_scratch(extraction, drop)
    job.note(dropped.tally)
    ordering = Ordering(job, extraction, dropped.file)
    retry_after_lost_scratch(ordering, lambda: None)
    ordered = ordering.in_order()
    if job.pipeline.join is not None:
        joined = retry_after_lost_scratch(
            ordering, lambda: settle_join(job, extraction, ordering.located())
        )
        job.note(joined)
        _check_nothing_lost_by_join(extraction, ordered)
    else:
        _check_nothing_lost(dropped, extraction, ordering)
    payload_total = sum(facts.payload_bytes for facts in ordered)
    kept = sum(facts.records for facts in ordered)
    encoded = None
    if job.pipeline.measures_encoded:
        encoded = _encoded_sizes(job, ordering, sum(facts.stored_bytes for facts in ordered))
    rule = cut_rule(job, ordered, encoded)
    pieces, mixing = cut_partitions(job, ordering, rule, encoded)
    cut_shards = None
    if job.spec.equalize is not None:
        cut_shards = len(merge_pieces(pieces, rule=rule))
        pieces, left_out = _equalize(job, extraction, ordering, pieces, rule)
        kept -= left_out
    schema = agreed_schema(job, extraction)
    container = job.pipeline.carrier.with_schema(schema)
    cut = merge_pieces(pieces, rule=rule)
    del pieces  # they are columns by now
    groups = int(cut.column("group").max(initial=0)) + 1
    late = [job.pipeline.output(group).is_late for group in range(groups)]
    outputs = with_ends(container, cut, late=late)
    if outputs.total("records") != kept:
        raise InvariantError(f"{kept} records were cut into {len(outputs)} shards that have fewer")
    if job.spec.equalize is not None:
        payload_total = outputs.total("payload_bytes")
    plan = Plan(
        shards=outputs,
        names=_names(job, outputs),
        records=kept,
        members=outputs.total("members"),
        payload_bytes=payload_total,
        stored_bytes=outputs.total("stored_bytes"),
        schema=schema,
        late_schemas=late_schemas(job, extraction),
    )
    _end_flow(job, ordered)
    _warn_of_nothing(job, plan)
    _warn_of_overhead(job, plan)
    _warn_of_large_records(job, plan, rule)
    cut_shards = cut_shards or len(outputs)  # what equalize leaves out was mixed with the rest
    job.mixing = judge_mixing(
        mixing.table(cut_shards), input_shards=len(job.inputs), output_shards=cut_shards
    )
    return plan, ordering


_DROPS = ("deduplicated", "duplicate_keys_dropped", "left_out_to_equalize")


def _end_flow(job: Job, ordered: Sequence[OrderDone]) -> None:
    """What is known once the plan is: duplicates, joins, and shards with equal numbers."""
    assert job.flow is not None
    joins = [facts.join for facts in ordered if facts.join is not None]
    if joins:
        pieces = sum(each.pieces for each in joins)
        job.flow.drop("join", sum(each.left_out for each in joins))
        job.flow.drop("joined into one record", pieces - sum(facts.records for facts in ordered))
    for each in job.reactions():
        if each.kind in _DROPS and not (joins and each.kind == "duplicate_keys_dropped"):
            job.flow.drop(each.kind, each.count)


def _equalize(
    job: Job, extraction: Extraction, ordering: Ordering, pieces: Pieces, rule: CutRule
) -> tuple[Pieces, int]:
    """The pieces of shards with equal numbers of records, and how many records are left out."""
    found = retry_after_lost_scratch(
        ordering, lambda: equal_pieces(job, extraction, ordering.node_of, pieces, rule)
    )
    append_reactions(job, found.lines)
    job.note(found.tally)
    return Pieces(found.pieces), found.left_out


def _warn_of_nothing(job: Job, plan: Plan) -> None:
    """A mistyped member in a step leaves out all records, which nobody asks for."""
    left_out = sum(each.count for each in job.reactions() if each.kind == "left_out_by_steps")
    if left_out and not plan.records:
        job.warn("no_records", f"no record is left: steps left out {left_out:,}")


def _warn_of_overhead(job: Job, plan: Plan) -> None:
    """Of small members, headers and padding are most of a shard, which its size does not count."""
    targets = job.spec.targets
    if all(target.size_bytes is None or target.counts_file for target in targets):
        return
    if plan.stored_bytes <= OVERHEAD_IGNORED_BYTES * len(plan.shards):
        return
    if plan.records and plan.stored_bytes >= OVERHEAD_WARNED_FROM * plan.payload_bytes:
        job.warn(
            "output_shard_size",
            OVERHEAD_TEXT.format(
                stored=format_bytes(plan.stored_bytes), payload=format_bytes(plan.payload_bytes)
            ),
        )


def _warn_of_large_records(job: Job, plan: Plan, rule: CutRule) -> None:
    """No shard can be as small as asked for that has a record which is larger."""
    if not any(each.at_most for each in rule.of_outputs or (rule,)):
        return
    names, limits = [], set()
    for name, shard in zip(plan.names, plan.shards, strict=True):
        own = rule.of_group(shard.group)
        size = shard.file_bytes if own.counts_file else shard.payload_bytes
        if own.at_most and own.size_bytes is not None and size > own.size_bytes:
            names.append(name)
            limits.add(format_bytes(own.size_bytes))
    if names:
        records = f"{len(names):,} records are" if len(names) > 1 else "1 record is"
        job.warn(
            "output_shard_size",
            f"{records} larger than output_shard_size, {' or '.join(sorted(limits))}, and have "
            f"an output shard of their own: {first_few(names)}",
        )


def _encoded_sizes(job: Job, ordering: Ordering, stored_bytes: int) -> EncodedSizes:
    """What the records come to behind the codec, in their order."""

    def measure() -> EncodedSizes:
        runs = merge_pieces(cut_partitions(job, ordering, run_rule(job, stored_bytes))[0])
        return retry_after_lost_scratch(
            ordering, lambda: measured_sizes(job, runs, ordering.locations, ordering.node_of)
        )

    return encoded_sizes(job, stored_bytes, measure)


def _names(job: Job, outputs: OutputShards) -> PackedTexts:
    field = "ekm" if job.pipeline.keymap else "output_format"
    job.names = job.names.counted(outputs)
    try:
        return PackedTexts(job.names.names(outputs))
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
        raise _mismatch(
            extraction,
            f"{records} records were extracted and {dropped.count} are to be dropped, but {kept} "
            f"are planned and {left_out} were dropped",
        )
    stored = sum(facts.stored_bytes for facts in extracted)
    planned = sum(facts.stored_bytes for facts in ordered)
    if planned > stored or (not dropped.count and planned != stored):
        raise _mismatch(extraction, f"{stored} bytes were extracted, but {planned} are planned")


def _check_nothing_lost_by_join(extraction: Extraction, ordered: Sequence[OrderDone]) -> None:
    """Every record that was extracted is a piece of one in the plan, or was left out."""
    joins = [facts.join for facts in ordered if facts.join is not None]
    kept, left_out = (sum(each.pieces for each in joins), sum(each.left_out for each in joins))
    records = sum(facts.records for facts in extraction.done.values())
    stored = sum(facts.stored_bytes for facts in extraction.done.values())
    planned = sum(facts.stored_bytes for facts in ordered)
    if kept + left_out != records or planned > stored or (not left_out and planned != stored):
        raise _mismatch(
            extraction,
            f"{records} records of {stored} bytes were extracted; {kept} of {planned} bytes are "
            f"planned, and {left_out} were left out",
        )


def _mismatch(extraction: Extraction, what: str) -> DsortError:
    """The error of counts that differ. What an earlier attempt noted may have been changed since;
    what was extracted just now cannot."""
    if not extraction.resumed:
        return InvariantError(what)
    return StorageError(
        f"the journal of job {extraction.job.job_id} does not match its scratch: {what}",
        hint="the job cannot be resumed; start it again",
    )
