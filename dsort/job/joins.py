"""What the orderers found as they joined records: counted, or refused."""

from __future__ import annotations

from collections.abc import Iterable

from dsort.data.tally import SAMPLES_MAX, Tally
from dsort.errors import DuplicateError, JoinError
from dsort.job.extract import Extraction
from dsort.job.job import Job
from dsort.job.reactions import store_reactions
from dsort.order.joining import JoinedKind
from dsort.workers.tasks import JoinFinding, OrderDone

__all__ = ["settle_join"]


def settle_join(job: Job, extraction: Extraction, ordered: Iterable[OrderDone]) -> Tally:
    """What was left out, with its names stored. ``ordered``: what is known of each partition, in
    order. ``JoinError`` or ``DuplicateError`` where records cannot be joined as the spec says."""
    known = [facts for facts in ordered if facts.join is not None]
    found: dict[tuple[str, str], tuple[int, list[str]]] = {}
    for facts in known:
        for each in facts.join.found if facts.join is not None else ():
            count, samples = found.get((each.kind, each.input_name), (0, []))
            found[each.kind, each.input_name] = count + each.count, [*samples, *each.samples]
    tally = Tally()
    for (kind, input_name), (count, samples) in sorted(found.items()):
        finding = JoinFinding(kind, count, input_name, tuple(samples[:SAMPLES_MAX]))
        _refuse(job, finding)
        reaction = "duplicate_keys_dropped" if kind == JoinedKind.DUPLICATE else kind
        tally.add(reaction, count, samples)
    parts = [("join", facts.partition, facts.node) for facts in known]
    store_reactions(job, extraction, parts)
    return tally


def _refuse(job: Job, found: JoinFinding) -> None:
    first, many = found.samples[0], found.count
    records = f"{many:,} records have" if many > 1 else "1 record has"
    if found.kind == JoinedKind.UNMATCHED:
        raise JoinError(
            f"{records} none of their key in the input {found.input_name}: {first}"
            if many > 1
            else f"a record has none of its key in the input {found.input_name}: {first}",
            hint="nonmatch: skip leaves such records out, none keeps them without it; also for one "
            "input alone (inputs[].join.nonmatch)",
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
