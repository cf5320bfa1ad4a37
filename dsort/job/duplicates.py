"""Finds duplicates, one range of hashes after the other, and drops, renames or reports them. A
duplicate is a record that has the key or the content of an earlier record."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from dsort.data.columns import BytesColumn
from dsort.data.index import KEYS
from dsort.data.table import Table
from dsort.data.tally import SAMPLES_MAX, Tally
from dsort.errors import DuplicateError
from dsort.job.extraction import Extraction, answers
from dsort.job.job import Job
from dsort.job.known_keys import known_keys
from dsort.naming.names import position_key, readable
from dsort.order.equal_keys import new_keys
from dsort.scratch.columns import columns_bytes
from dsort.scratch.requests import DistinctKeyHashes, Numbered, PositionsOf
from dsort.scratch.tables import NTH, POSITION_SHARD, POSITIONS, by_position
from dsort.sizes import format_count
from dsort.workers.tasks import DuplicatesDone, DuplicatesTask, Search

DROP_FILE, RENAME_FILE = "drop.col", "rename.col"
PART_BYTES = 16 << 20
OPENED_FILES_MAX = 1 << 20
KNOWN_HINT = (
    "duplicate_keys: drop leaves out records with keys that the result has, warn keeps them; "
    "rename does not rename them"
)
HASH_BYTES = 40
"""Memory of a record in the search for duplicates: hash, positions, and their sorted copies."""


class Dropped(Struct, frozen=True):
    """The records to leave out: ``count`` records, listed in the shared file ``file`` ("" if none).
    ``found``: (search, part, node) of each part of a search that found records, also if these are
    not left out. ``positions``: the content of ``file``."""

    count: int = 0
    file: str = ""
    tally: Tally = field(default_factory=Tally)
    found: tuple[tuple[str, int, str], ...] = ()
    positions: Table = field(default_factory=lambda: Table.concat([], POSITIONS))


def settle_duplicates(job: Job, extraction: Extraction) -> Dropped:
    """The records that ``deduplicate`` and then ``duplicate_keys`` leave out; ``DuplicateError`` if
    ``duplicate_keys`` is abort and two records have the same key."""
    wanted, by_key = job.pipeline.deduplication, job.pipeline.drops_same_keys
    if not wanted or job.pipeline.deduplicates_first:
        return _settle_keys(job, extraction, Dropped())
    recorded = "deduplicated" if job.attempt.has_begun else ""
    search = replace(_equal_search(job), want_rows=True, reaction=recorded)
    found = _find_duplicates(job, extraction, search)
    same = _left_out(job, search, "deduplicated", found, Dropped())
    return same if by_key else _settle_keys(job, extraction, same)


def settle_quietly(job: Job, extraction: Extraction) -> str:
    """The shared file of the records that ``settle_duplicates`` will leave out, "" if there are
    none. Counts and logs nothing yet."""
    wanted, by_key, drop = job.pipeline.deduplication, job.pipeline.drops_same_keys, Dropped()
    searches = []
    if wanted and not job.pipeline.deduplicates_first:
        searches.append(_equal_search(job))
    if job.pipeline.reading.policies.duplicate_keys == "drop" and not by_key:
        searches.append(_key_search(job))
    for number, search in enumerate(searches):
        name = f"before{number}-{search.name}"
        search = replace(search, name=name, want_rows=True, without=drop.file)
        found = _find_duplicates(job, extraction, search)
        drop = _left_out(job, search, "", found, drop)
    return drop.file


def equal_records(job: Job, survey: Extraction) -> bytes:
    """The content of a file with the positions of all records that ``deduplicate`` leaves out."""
    search = replace(_equal_search(job), name="equal", want_rows=True)
    found = _positions(job, search.name, _find_duplicates(job, survey, search))
    return columns_bytes(by_position(found.only(POSITIONS)).arrays())


def _settle_keys(job: Job, extraction: Extraction, before: Dropped) -> Dropped:
    """``before``, with the other records that ``duplicate_keys`` drops."""
    reaction = job.pipeline.reading.policies.duplicate_keys
    indexed = not {"wids", "energon"}.isdisjoint(job.pipeline.result.sidecars)
    if reaction == "rename":  # a survey chose the new keys before the payload moved
        _refuse_known(job, extraction)
        return before
    if reaction == "ignore" and not indexed:
        return before
    kind = "duplicate_keys_dropped" if reaction == "drop" else "duplicate_keys"
    recorded = kind if job.attempt.has_begun and reaction != "abort" else ""
    search = replace(
        _key_search(job), want_rows=reaction == "drop", reaction=recorded, without=before.file
    )
    found = _find_duplicates(job, extraction, search)
    count = sum(part.count for part in found)
    if count == 0:
        return before
    samples = _samples(job, found)
    records = format_count(count, "record has", "records have")
    if reaction == "abort":
        earlier = (
            "an earlier record, or of one of the result" if search.known else "an earlier record"
        )
        raise DuplicateError(
            f"{records} the key of {earlier}: {', '.join(samples[:3])}",
            hint=KNOWN_HINT if search.known else job.pipeline.placed_by.twice_hint,
        )
    if indexed and reaction != "drop":
        raise DuplicateError(
            f"{records} the key of an earlier record: {', '.join(samples[:3])}; wids and "
            "webdataset read neighbours with the same key as one sample, so an index would be "
            "wrong",
            hint="duplicate_keys: rename gives such records new keys; or leave out the index",
        )
    return _left_out(job, search, kind, found, before)


def _key_search(job: Job) -> Search:
    """The search for records whose key occurs in an earlier record, or in the result to which the
    job adds records."""
    return replace(_BY_KEY, known=known_keys(job) if job.appends else ())


def _equal_search(job: Job) -> Search:
    """The search of ``deduplicate``."""
    search = _key_search(job) if job.pipeline.drops_same_keys else _BY_CONTENT
    return replace(search, keep_last=job.pipeline.deduplication.keeps_last)


def _refuse_known(job: Job, extraction: Extraction) -> None:
    """``DuplicateError`` if records have keys of the result to which the job adds them. They are
    not renamed, because new names would depend on the keys that the result happens to have now."""
    search = replace(_key_search(job), name="known")
    found = _find_duplicates(job, extraction, search) if search.known else []
    if count := sum(part.count for part in found):
        keys = format_count(count, "record has a key", "records have keys")
        raise DuplicateError(
            f"{keys} that the result has: {', '.join(_samples(job, found)[:3])}",
            hint="rename changes only keys that several new records have; a rekey step gives all "
            "new records other keys",
        )


def _left_out(
    job: Job, search: Search, kind: str, found: Sequence[DuplicatesDone], before: Dropped
) -> Dropped:
    """``before``, with the records that were ``found`` after it. These are counted as ``kind``, and
    left out if the search wrote their positions."""
    count = sum(part.count for part in found)
    if not count:
        return before
    tally = Tally()
    tally.merge(before.tally)
    tally.add(kind, count, _samples(job, found))
    parts = (*before.found, *((search.name, p.part, p.node) for p in found if p.count))
    if not search.want_rows:
        return replace(before, tally=tally, found=parts)
    own = _positions(job, search.name, found).only(POSITIONS)
    positions = by_position(Table.concat([before.positions, own]))
    name = f"{search.name}-{DROP_FILE}"
    job.attempt.retain_on_nodes(name, columns_bytes(positions.arrays()))
    return Dropped(before.count + count, name, tally, parts, positions)


def rename_duplicates(job: Job, survey: Extraction) -> Tally:
    """Choose new keys for all duplicates, and give them to all nodes. Returns the counts."""
    found = _find_duplicates(job, survey, replace(_BY_KEY, want_rows=True))
    count = sum(part.count for part in found)
    if count == 0:
        return Tally()
    rows = by_position(_positions(job, _BY_KEY.name, found))
    taken = [
        job.runtime.ask(node, DistinctKeyHashes(survey.stage.name, shards))
        for node, shards in survey.shard_locations().by_node()
    ]
    keys, shard = rows[KEYS], rows[POSITION_SHARD]
    fresh = new_keys(keys.tolist(), rows[NTH], np.unique(np.concatenate(taken)))
    renames = rows.with_(KEYS, BytesColumn.of(fresh))
    job.attempt.retain_on_nodes(RENAME_FILE, columns_bytes(renames.arrays()))
    tally = Tally()
    samples = (
        f"{job.inputs[int(shard[row])].name}: {readable(keys[row])} → {readable(fresh[row])}"
        for row in range(min(count, SAMPLES_MAX))
    )
    tally.add("duplicate_keys_renamed", count, samples)
    return tally


_BY_KEY = Search("duplicates")
_BY_CONTENT = Search("same", by_content=True)


def _find_duplicates(job: Job, extraction: Extraction, search: Search) -> list[DuplicatesDone]:
    """Divide the search into ranges of a hash. Each range fits in one worker's memory."""
    records = sum(facts.records for facts in extraction.done.values())
    if not records:
        return []
    if not search.by_content and not search.known and _keys_are_positions(job, extraction):
        return []
    parts = _parts(job, records * HASH_BYTES)
    bounds = [part * (1 << 64) // parts for part in range(parts)] + [0]
    tasks = (
        DuplicatesTask(
            part,
            bounds[part],
            bounds[part + 1],
            extraction.locations,
            extraction.stage.name,
            search,
        )
        for part in range(parts)
    )
    found: dict[int, DuplicatesDone] = {}
    for _, done in answers(job, tasks, DuplicatesDone):
        found[done.part] = done
    return [found[part] for part in range(parts)]


def _keys_are_positions(job: Job, extraction: Extraction) -> bool:
    """Whether all keys are positions in shards with distinct names: then no two keys are equal."""
    if not all(each.numbers_records for each in job.pipeline.reading.containers):
        return False
    if len({position_key(shard.name, 0) for shard in job.inputs}) < len(job.inputs):
        return False
    return all(
        job.runtime.ask(node, Numbered(extraction.stage.name, shards)).all()
        for node, shards in extraction.shard_locations().by_node()
    )


def _parts(job: Job, size_bytes: int) -> int:
    """The number of ranges of hashes. The hashes of a range fit in a worker's buffer. There is a
    range for each worker, and a range has at most ``PART_BYTES``, unless that makes too many
    ranges: each range opens every index file."""
    needed = -(-size_bytes // max(job.found.movement.buffer_bytes, 1))
    wanted = max(job.found.movement.workers, -(-size_bytes // PART_BYTES))
    return max(needed, min(wanted, OPENED_FILES_MAX // max(len(job.inputs), 1)), 1)


def _samples(job: Job, found: Iterable[DuplicatesDone]) -> list[str]:
    """The names of some duplicates, independent of the number of parts."""
    rows = sorted(sample for part in found for sample in part.samples)
    return [f"{job.inputs[shard].name}: {readable(key)}" for shard, _, key in rows[:SAMPLES_MAX]]


def _positions(job: Job, name: str, found: Iterable[DuplicatesDone]) -> Table:
    """The positions of the duplicates that the parts of the search found."""
    parts: list[Table] = [
        job.runtime.ask(part.node, PositionsOf(f"{name}-{part.part}.col"))
        for part in found
        if part.count
    ]
    return Table.concat(parts, (*POSITIONS, KEYS))
