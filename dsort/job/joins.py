"""What the orderers found as they joined records: counted, or refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from dsort.data.columns import BytesColumn
from dsort.data.tally import SAMPLES_MAX, Tally
from dsort.errors import DuplicateError, JoinError
from dsort.job.extract import Extraction, answers, retry_after_lost_scratch
from dsort.job.job import Job
from dsort.job.reactions import store_reactions
from dsort.order.joining import JoinedKind
from dsort.scratch.columns import columns_bytes
from dsort.scratch.index import check_left_out
from dsort.scratch.requests import Positions, PositionsOf
from dsort.transforms.positions import InputPositions
from dsort.workers.tasks import JoinFinding, OrderDone, OrderTask

__all__ = ["LEFT_OUT_FILE", "choose_left_out", "readings_for_join", "settle_join"]

LEFT_OUT_FILE = "left-out.col"


def readings_for_join(job: Job) -> int:
    """How often all inputs are read to find out what a join leaves out, as far as no earlier
    attempt has done it."""
    rule = job.spec.join_rule
    needed = rule is not None and rule.is_settled_first
    return int(needed and job.retained(LEFT_OUT_FILE) is None)


def choose_left_out(job: Job, positions: InputPositions | None) -> str:
    """The shared file of what a join leaves out where inputs have members of one extension; "" for
    other jobs. It takes a pass over the inputs first (``Extraction`` of the stage ``join``)."""
    rule = job.spec.join_rule
    if rule is None or not rule.is_settled_first:
        return ""
    kept = job.retained(LEFT_OUT_FILE)
    if kept is not None:
        what = f"{LEFT_OUT_FILE} of job {job.job_id}"
        check_left_out(kept, what, shards=len(job.inputs))
        job.runtime.share(LEFT_OUT_FILE, kept)
        return LEFT_OUT_FILE
    partitions = job.movement.partitions
    survey = Extraction(job, "join", partitions=partitions, positions=positions)
    data = retry_after_lost_scratch(survey, lambda: _search(job, survey))
    job.retain_on_nodes(LEFT_OUT_FILE, data)
    return LEFT_OUT_FILE


def _search(job: Job, survey: Extraction) -> bytes:
    """The file. ``JoinError`` or ``DuplicateError`` where records cannot be joined."""
    tasks = (
        OrderTask(partition, survey.locations, stage="join")
        for partition in range(survey.partitions)
    )
    done: dict[int, OrderDone] = {}
    for _, facts in answers(job, tasks):
        assert isinstance(facts, OrderDone)
        done[facts.partition] = facts
    ordered = [done[partition] for partition in range(survey.partitions)]
    for finding in _summed(ordered):
        _refuse(job, finding)
    parts: list[Positions] = [
        job.runtime.ask(facts.node, PositionsOf(f"left-out-{facts.partition}.col"))
        for facts in ordered
        if facts.join is not None and facts.join.positions
    ]
    none = np.zeros(0, np.int64)
    shard = np.concatenate([none, *(part.shard for part in parts)])
    ordinal = np.concatenate([none, *(part.ordinal for part in parts)])
    order = np.lexsort((ordinal, shard))
    return columns_bytes(
        {
            "shard": shard[order],
            "ordinal": ordinal[order],
            "nth": np.concatenate([none, *(part.nth for part in parts)])[order],
            "keys": BytesColumn.concat([BytesColumn.empty(0), *(part.keys for part in parts)]).take(
                order
            ),
        }
    )


def settle_join(job: Job, extraction: Extraction, ordered: Iterable[OrderDone]) -> Tally:
    """What was left out, with its names stored. ``ordered``: what is known of each partition, in
    order. ``JoinError`` or ``DuplicateError`` where records cannot be joined as the spec says."""
    known = list(ordered)
    tally = Tally()
    for found in _summed(known):
        _refuse(job, found)
        kind = "duplicate_keys_dropped" if found.kind == JoinedKind.DUPLICATE else found.kind
        tally.add(kind, found.count, found.samples)
    parts = [("join", facts.partition, facts.node) for facts in known]
    store_reactions(job, extraction, parts)
    return tally


def _summed(ordered: Iterable[OrderDone]) -> Iterator[JoinFinding]:
    """What was found in all partitions, by kind and input."""
    found: dict[tuple[str, str], tuple[int, list[str]]] = {}
    for facts in ordered:
        for each in facts.join.found if facts.join is not None else ():
            count, samples = found.get((each.kind, each.input_name), (0, []))
            found[each.kind, each.input_name] = count + each.count, [*samples, *each.samples]
    for (kind, input_name), (count, samples) in sorted(found.items()):
        yield JoinFinding(kind, count, input_name, tuple(samples[:SAMPLES_MAX]))


def _refuse(job: Job, found: JoinFinding) -> None:
    first, many = found.samples[0], found.count
    records = f"{many:,} records have" if many > 1 else "1 record has"
    if found.kind == JoinedKind.UNMATCHED:
        raise JoinError(
            f"{records} none of their key in the input {found.input_name}: {first}"
            if many > 1
            else f"a record has none of its key in the input {found.input_name}: {first}",
            hint="nonmatch: skip leaves such records out, none keeps them without it, also for one "
            "input alone (inputs[].join.nonmatch); by: stem does not look at directories in keys",
        )
    if found.kind == JoinedKind.CONFLICT:
        raise JoinError(
            f"{records} members of one extension in several inputs: {first}",
            hint="conflict: first or last says which one stays",
        )
    if found.kind == JoinedKind.DUPLICATE and job.spec.config.duplicate_keys != "drop":
        raise DuplicateError(
            f"{records} the key of an earlier record of the same input: {first}",
            hint="duplicate_keys: drop takes the first of each input",
        )
