"""The plan phase: find duplicates, order the partitions and cut them into output shards.

Tasks on the runtime do the work. Nothing here looks at payload; workers report counts and
positions. Records that have the key of an earlier record are found by ranges of the key hash.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import xxhash
from msgspec import Struct

from dsort.containers.base import Container
from dsort.data.columns import PackedTexts
from dsort.errors import (
    DsortError,
    InvariantError,
    ObjectNotFoundError,
    SchemaError,
    SpecError,
    SpecProblem,
    StorageError,
)
from dsort.job.duplicates import Dropped, settle_duplicates
from dsort.job.extraction import (
    Extraction,
    retry_after_lost_scratch,
)
from dsort.job.job import Job
from dsort.job.order import (
    Ordering,
    cut_partitions,
    cut_rule,
    encoded_sizes,
    equal_pieces,
)
from dsort.job.output_names import TemplateExhaustedError
from dsort.job.reactions import append_reactions, store_reactions
from dsort.naming.names import directory_of, first_few
from dsort.order.cut import (
    NOT_MEASURED,
    CutRule,
)
from dsort.order.mixing_counts import judge_mixing
from dsort.order.output_shards import OutputShards, Pieces, merge_pieces
from dsort.results.report import OutputCount, ReaderCounts, Totals, reader_counts
from dsort.scratch.requests import Sample
from dsort.sizes import format_bytes, format_count
from dsort.storage.bucket import Bucket
from dsort.storage.small_objects import read_small
from dsort.workers.conversion import extensions_by_output
from dsort.workers.tasks import (
    OrderDone,
)

OVERHEAD_WARNED_FROM = 1.5
"""Output shards that are at least this many times as large as their payload cause a warning."""
OVERHEAD_TEXT = (
    "the output shards take {stored}, but their payload is {payload}: output_shard_size counts "
    "only payload (output_shard_size_counts: file counts headers and padding, too)"
)
OVERHEAD_IGNORED_BYTES = 4 * 10_240
"""Shards of at most this size on average cause no warning. A shard of a few tar blocks (20 x 512
bytes) is mostly headers and padding, whatever ``output_shard_size`` counts."""


class Plan(Struct, frozen=True):
    """The plan: every output shard with its name. The order of the records is in scratch."""

    shards: OutputShards
    names: Sequence[str]
    records: int
    members: int
    payload_bytes: int
    stored_bytes: int
    schema: str = ""  # of all records, if their container has schemas
    late_schemas: tuple[str, ...] = ()  # by output, of records converted while they are written

    def totals(self, input_shards: int) -> Totals:
        """The totals for a report. ``input_shards``: the number of input shards."""
        sizes = (self.records, self.members, self.payload_bytes)
        return Totals(input_shards, len(self.shards), *sizes, int(self.shards.file_bytes.sum()))

    def by_output(self, names: Sequence[str]) -> tuple[OutputCount, ...]:
        """The counts of each output; empty if there is only one output. ``names``: of all
        outputs."""
        if len(names) < 2:
            return ()
        counted = [self.shards.column(name) for name in ("records", "payload_bytes")]
        counted.append(self.shards.file_bytes)
        chosen = [self.shards.column("group") == group for group in range(len(names))]
        return tuple(
            OutputCount(name, int(rows.sum()), *(int(column[rows].sum()) for column in counted))
            for name, rows in zip(names, chosen, strict=True)
        )

    def readers(self, names: Sequence[str]) -> tuple[ReaderCounts, ...]:
        """How many workers can read each output. ``names``: the names of the outputs if there are
        several."""
        groups = self.shards.column("group").tolist()
        records = self.shards.column("records").tolist()
        return reader_counts(
            (names[group] if names else "", count)
            for group, count in zip(groups, records, strict=True)
        )

    def digest(self) -> str:
        """A digest that is the same for two plans of the same output shards."""
        state = xxhash.xxh3_128()
        columns = (self.shards.column(name).tolist() for name in ("records", "stored_bytes"))
        for name, records, stored_bytes in zip(self.names, *columns, strict=True):
            state.update(f"{name}\0{records}\0{stored_bytes}\0".encode())
        return state.hexdigest()


def make_plan(job: Job, extraction: Extraction) -> tuple[Plan, Ordering]:
    """Order all partitions and cut them into output shards; check that nothing is lost."""

    def drop() -> Dropped:
        if job.pipeline.join:  # orderers find the duplicate keys of joined records
            return Dropped()
        dropped = settle_duplicates(job, extraction)
        store_reactions(job, extraction, dropped.found)
        return dropped

    dropped = retry_after_lost_scratch(extraction, drop)
    job.reporter.note(dropped.tally)
    ordering = Ordering(job, extraction, dropped.file)
    retry_after_lost_scratch(ordering, lambda: None)
    ordered = ordering.in_order()
    if job.pipeline.join:
        from dsort.job.surveys.joins import settle_join  # few jobs join

        joined = retry_after_lost_scratch(
            ordering, lambda: settle_join(job, extraction, ordering.located())
        )
        job.reporter.note(joined)
        _check_nothing_lost_by_join(extraction, ordered)
    else:
        _check_nothing_lost(dropped, extraction, ordering)
    kept = sum(facts.records for facts in ordered)
    if kept < sum(job.pipeline.placed_by.counts):
        retry_after_lost_scratch(ordering, lambda: _refuse_missing(job, extraction))
    encoded = NOT_MEASURED
    if job.pipeline.measures_encoded:
        encoded = encoded_sizes(ordering, sum(facts.stored_bytes for facts in ordered))
    rule = cut_rule(job, ordered, encoded)
    pieces, mixing = cut_partitions(job, ordering, rule, encoded)
    cut_shards = 0
    if job.pipeline.result.equalizes:
        cut_shards = len(merge_pieces(pieces, rule=rule))
        found = retry_after_lost_scratch(ordering, partial(equal_pieces, ordering, pieces, rule))
        append_reactions(job, found.lines)
        job.reporter.note(found.tally)
        pieces = Pieces(found.pieces)
        kept -= found.left_out
    schema = agreed_schema(job, extraction)
    container = job.pipeline.carrier.with_schema(schema)
    cut = merge_pieces(pieces, rule=rule)
    del pieces  # ``cut`` has them as columns
    groups = int(cut.column("group").max(initial=0)) + 1
    late = [job.pipeline.output(group).is_late for group in range(groups)]
    outputs = with_ends(container, cut, late=late)
    if outputs.total("records") != kept:
        raise InvariantError(f"{kept} records were planned, and {len(outputs)} shards have fewer")
    plan = Plan(
        shards=outputs,
        names=_names(job, outputs),
        records=kept,
        members=outputs.total("members"),
        payload_bytes=outputs.total("payload_bytes"),
        stored_bytes=outputs.total("stored_bytes"),
        schema=schema,
        late_schemas=late_schemas(job, extraction),
    )
    _end_flow(job, ordered)
    _warn_of_nothing(job, plan)
    _warn_of_overhead(job, plan)
    _warn_of_large_records(job, plan, rule)
    cut_shards = cut_shards or len(outputs)  # records left out by equalize were mixed, too
    job.outcome.mixing = judge_mixing(
        mixing.table(cut_shards), input_shards=len(job.inputs), output_shards=cut_shards
    )
    return plan, ordering


_DROPS = ("deduplicated", "duplicate_keys_dropped", "left_out_to_equalize")


def _end_flow(job: Job, ordered: Sequence[OrderDone]) -> None:
    """Add to the flow the figures that only a plan shows: duplicates, joins, and records left out
    to equalize shards."""
    joins = [facts.join for facts in ordered] if job.pipeline.join else []
    if joins:
        pieces = sum(each.pieces for each in joins)
        job.outcome.flow.drop("join", sum(each.left_out for each in joins))
        job.outcome.flow.drop(
            "joined into one record", pieces - sum(facts.records for facts in ordered)
        )
    for each in job.reporter.reactions():
        if each.kind in _DROPS and not (joins and each.kind == "duplicate_keys_dropped"):
            job.outcome.flow.drop(each.kind, each.count)


def _warn_of_nothing(job: Job, plan: Plan) -> None:
    """Warn if steps left out all records. Users never intend this; its cause is often a mistyped
    member."""
    left_out = sum(
        each.count for each in job.reporter.reactions() if each.kind == "left_out_by_steps"
    )
    if left_out and not plan.records:
        job.reporter.warn("no_records", f"no record is left: steps left out {left_out:,}")


def _warn_of_overhead(job: Job, plan: Plan) -> None:
    """Warn if shards are mostly headers and padding, because members are small and the size of a
    shard does not count headers and padding."""
    targets = job.pipeline.targets
    if not job.found.movement.way.moves_payload:  # views have neither headers nor padding
        return
    if all(target.size_bytes is None or target.counts_file for target in targets):
        return
    if plan.stored_bytes <= OVERHEAD_IGNORED_BYTES * len(plan.shards):
        return
    if plan.records and plan.stored_bytes >= OVERHEAD_WARNED_FROM * plan.payload_bytes:
        job.reporter.warn(
            "output_shard_size",
            OVERHEAD_TEXT.format(
                stored=format_bytes(plan.stored_bytes), payload=format_bytes(plan.payload_bytes)
            ),
        )


def _warn_of_large_records(job: Job, plan: Plan, rule: CutRule) -> None:
    """Warn of records that are larger than the requested size of output shards: the shards of such
    records are larger, too."""
    if not any(each.at_most for each in rule.of_outputs or (rule,)):
        return
    names, limits = [], set()
    for name, shard in zip(plan.names, plan.shards, strict=True):
        own = rule.of_group(shard.group)
        size = shard.file_bytes if own.counts_file else shard.payload_bytes
        if own.at_most and own.size_bytes and size > own.size_bytes:
            names.append(name)
            limits.add(format_bytes(own.size_bytes))
    if names:
        records = format_count(len(names), "record is", "records are")
        job.reporter.warn(
            "output_shard_size",
            f"{records} larger than output_shard_size, {' or '.join(sorted(limits))}, and have "
            f"an output shard of their own: {first_few(names)}",
        )


def _names(job: Job, outputs: OutputShards) -> PackedTexts:
    field = job.pipeline.placed_by.field
    job.outcome.names = job.outcome.names.counted(outputs)
    try:
        return PackedTexts(job.outcome.names.names(outputs))
    except TemplateExhaustedError as error:
        hint = "use a template with more names, or a larger output_shard_size"
        raise SpecError([SpecProblem(field, str(error), hint)]) from None
    except ValueError as error:
        raise SpecError([SpecProblem(field, str(error))]) from None


def _check_nothing_lost(dropped: Dropped, extraction: Extraction, ordering: Ordering) -> None:
    """Check that every extracted record is in the plan, unless the spec drops it."""
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
    """Check that every extracted record is a piece of a record in the plan, or was left out."""
    joins = [facts.join for facts in ordered]
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


def _refuse_missing(job: Job, extraction: Extraction) -> None:
    """Raise the error for given places that no record has. Two records cannot have the same place,
    because duplicate keys are refused earlier."""
    given = job.pipeline.placed_by
    requests = (
        (node, Sample(extraction.stage.name, shards, sum(given.counts)))
        for node, shards in extraction.shard_locations().by_node()
    )
    given.refuse_missing(
        sample.sort for node, request in requests for sample in job.runtime.ask(node, request)
    )


def _mismatch(extraction: Extraction, what: str) -> DsortError:
    """The error for counts that differ. It is a ``StorageError`` if some facts come from an earlier
    attempt, because its files may have changed since then; else an ``InvariantError``."""
    if not extraction.resumed:
        return InvariantError(what)
    return StorageError(
        f"the journal of job {extraction.job.job_id} does not match its scratch: {what}",
        hint="the job cannot be resumed; start it again",
    )


FILE_BYTES_MAX = 256 << 20
AT_ONCE = 1 << 16
_APART = "run one job for the shards of each schema, or write all shards with the same schema"
_AS_WRITTEN = "restore the file that was written with the shards"


def input_schema(job: Job) -> str:
    """The schema in the files beside the inputs; "" if their container has no such files.
    ``SchemaError`` if such a file is missing or unusable, or if two differ."""
    schemas = job.pipeline.reading.container.schemas
    if not schemas or not schemas.file:
        return ""
    first, schema = "", ""
    for directory in sorted({directory_of(shard.name) for shard in job.inputs}):
        name = f"{directory}{schemas.file}"
        where = f"{name} in {job.buckets.inputs.uri}"
        try:
            found = schemas.in_file(read_small(job.buckets.inputs, name, bytes_max=FILE_BYTES_MAX))
        except ObjectNotFoundError:
            raise SchemaError(
                f"there is no {where}, which describes the records of the shards beside it",
                hint="restore this file: without it the shards cannot be read",
            ) from None
        except ValueError as error:
            raise SchemaError(f"{where} cannot be used: {error}", hint=_AS_WRITTEN) from None
        if schema and found != schema:
            difference = schemas.difference(schema, found)
            raise SchemaError(f"{where} {difference}, unlike {first}", hint=_APART)
        first, schema = name, found
    return schema


def with_schema_beside(container: Container, bucket: Bucket, name: str) -> Container:
    """``container`` with the schema in the file beside the shard ``name``, if there is such a file:
    nothing else describes the records of the shard. ``SchemaError`` if it is damaged."""
    schemas = container.schemas
    if not schemas or not schemas.file:
        return container
    file = f"{directory_of(name)}{schemas.file}"
    try:
        found = read_small(bucket, file, bytes_max=FILE_BYTES_MAX)
        return container.with_schema(schemas.in_file(found))
    except ObjectNotFoundError:
        return container
    except ValueError as error:
        text = f"shard {name} has no schema: {file} in {bucket.uri} cannot be used: {error}"
        raise SchemaError(text, hint=_AS_WRITTEN) from None


def agreed_schema(job: Job, extraction: Extraction) -> str:
    """The schema that all extracted shards have; "" if there is none. ``SchemaError`` with the
    first shard that has another schema than those before it, and how they differ."""
    first = -1
    schema, schemas = "", job.pipeline.carrier.schemas
    # With late outputs, the schemas of shards are for ``late_schemas``.
    if not schemas or job.pipeline.has_late_outputs:
        return ""
    for shard, facts in sorted(extraction.done.items()):
        if not facts.schema or facts.schema == schema:
            continue
        if schema:
            difference = schemas.difference(schema, facts.schema)
            raise SchemaError(
                f"shard {job.inputs[shard].name} {difference}, unlike shard "
                f"{job.inputs[first].name}: an output shard can have only one schema",
                hint=_APART,
            )
        first, schema = shard, facts.schema
    return schema


def late_schemas(job: Job, extraction: Extraction) -> tuple[str, ...]:
    """For each output whose records are converted while they are written: the schema of these
    records, from all extensions of their members; "" for other outputs. Empty if no output has such
    a schema."""
    wanted = [form.container.schemas if form.is_late else None for form in job.pipeline.outputs]
    if not any(wanted):
        return ()
    found: list[set[str]] = [set() for _ in job.pipeline.targets]
    for facts in extraction.done.values():
        for own, names in zip(found, extensions_by_output(facts.schema), strict=False):
            own.update(names)
    return tuple(
        schemas.of_members(sorted(names)) if schemas and names else ""
        for schemas, names in zip(wanted, found, strict=True)
    )


def with_ends(
    container: Container, shards: OutputShards, *, late: Sequence[bool] = ()
) -> OutputShards:
    """The output shards with the sizes of their heads and ends, which the container puts around the
    members. ``late``: for each group, whether its records are converted while they are written, so
    that these sizes are unknown. ``SpecError`` for a shard that is longer than allowed."""
    is_late = np.array(late or [False], bool)[shards.column("group") * bool(late)]
    heads, ends = np.zeros(len(shards), np.int64), np.zeros(len(shards), np.int64)
    names = ("records", "members", "entries_bytes", "stored_bytes")
    head = container.head
    for begin in range(0, len(shards), AT_ONCE):
        part = slice(begin, begin + AT_ONCE)
        rows = [shards.column(name)[part].tolist() for name in names]
        if head:
            heads[part] = list(map(head.size_bytes, rows[0]))
        ends[part] = [container.end_bytes(*sizes) for sizes in zip(*rows[1:], strict=True)]
    heads[is_late] = ends[is_late] = 0
    placed = shards.with_columns(head_bytes=heads, end_bytes=ends)
    largest = int(placed.container_bytes.max(initial=0))
    if head and head.shard_bytes_max < largest:
        problem = SpecProblem(
            "output_shard_size",
            f"an output shard would have {largest:,} bytes, but a {container.suffixes[0]} shard "
            f"may have {head.shard_bytes_max:,}",
            "choose a smaller output_shard_size, or a larger output_shard_count",
        )
        raise SpecError([problem])
    return placed
