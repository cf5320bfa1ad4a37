"""Finds, in one pass, what partitions depend on: the sort keys at which they begin, new keys of
duplicates, and the numbers of records in the classes that decide the order."""

from __future__ import annotations

import json
from functools import partial
from typing import NamedTuple

import numpy as np
import xxhash
from msgspec import Struct, to_builtins
from msgspec.structs import replace

from dsort.data.index import SortKeys
from dsort.data.tally import TallyRow, tally_of, tally_rows
from dsort.errors import ContentKeyError, StorageError, damaged
from dsort.job.duplicates import RENAME_FILE, Renamed, rename_duplicates
from dsort.job.extraction import Extraction, is_even, retry_after_lost_scratch
from dsort.job.facts import Facts, parse_kept, share_kept
from dsort.job.job import Job
from dsort.log_lines import logger_of
from dsort.order.class_numbers import CLASSES_MAX, classes_of_all
from dsort.order.partitions import Splitters, pick_splitters
from dsort.scratch.class_table import check_class_table, class_table_bytes
from dsort.scratch.index import check_splitters, splitters_bytes
from dsort.scratch.positions import check_renames
from dsort.scratch.requests import ClassCountsOf, Sample, Sampled
from dsort.workers.tasks import Stage

CLASSES_FILE = "classes.col"
SPLITTERS_FILE = "splitters.col"
ROWS_MAX = 2_000_000
"""Rows of the sample that splitters are picked from."""

log = logger_of("job")


class _Wanted(NamedTuple):
    splitters: bool
    renames: bool
    classes: bool


class _Files(NamedTuple):
    """Shared files that the pass made; "" if there is nothing to divide, rename or number."""

    splitters: str = ""
    renames: str = ""
    classes: str = ""


_FILES = _Files(SPLITTERS_FILE, RENAME_FILE, CLASSES_FILE)


def readings(job: Job) -> int:
    """How many passes over all inputs it needs that no earlier attempt has made."""
    return int(any(_wanted(job)) and job.attempt.retained(_marker(job)) is None)


def find(job: Job, facts: Facts) -> Facts:
    """``facts`` with the shared files of splitters, renames and classes, as far as needed."""
    if any(wanted := _wanted(job)):
        files = _kept(job) or _survey(job, facts, wanted)
        facts = replace(facts, **files._asdict())
    if _parts_by_shards(job):
        facts = replace(facts, splitters=_splitters_of_shards(job))
    return facts


def _wanted(job: Job) -> _Wanted:
    renames = job.pipeline.reading.policies.duplicate_keys == "rename"
    classes = job.pipeline.algorithm.placement is not None
    uneven = not is_even(job) and not _parts_by_shards(job)
    return _Wanted(uneven and (job.movement.way.spills or renames or classes), renames, classes)


def _parts_by_shards(job: Job) -> bool:
    """Whether records stay in their shards: the begin of partitions does not depend on records
    then."""
    return job.movement.way.spills and not is_even(job) and job.pipeline.keeps_shards


def _marker(job: Job) -> str:
    return f"survey-{job.movement.partitions}.json"


def _survey(job: Job, known: Facts, wanted: _Wanted) -> _Files:
    """Make the pass. A later attempt uses its findings, because the spill is divided by them."""
    left_out = known.left_out if known.places else ""
    stage = Stage("survey", left_out=left_out, places=known.places, borders=known.borders)
    survey = Extraction(job, stage, known)
    renamed, splitters, classes = Renamed(), "", ""
    if wanted.renames:
        renamed = retry_after_lost_scratch(survey, lambda: rename_duplicates(job, survey))
    if wanted.splitters:
        splitters = retry_after_lost_scratch(survey, lambda: _sampled_splitters(job, survey))
    if wanted.classes:
        classes = retry_after_lost_scratch(survey, lambda: _count_classes(job, survey))
    job.reporter.note(renamed.tally)
    found = _Files(splitters, renamed.file, classes)
    splitting, renaming, counting = (job.attempt.digests.get(name, "") for name in found)
    made = _Survey(found, (splitting, renaming, counting), tally_rows(renamed.tally))
    job.attempt.retain(_marker(job), json.dumps(to_builtins(made)).encode())
    return found


def _kept(job: Job) -> _Files | None:
    """The files that an earlier attempt made; None if some of them are missing."""
    kept = job.attempt.retained(_marker(job))
    if kept is None:
        return None
    before = _parse(kept, f"{_marker(job)} of job {job.job_id}")
    found, digests = before.files, dict(zip(before.files, before.digests, strict=True))
    names = [name for name in found if name]
    if not share_kept(job, {name: partial(_check, job, name, digests[name]) for name in names}):
        return None
    job.reporter.note(tally_of(before.tally))
    return found


def _check(job: Job, name: str, digest: object, data: bytes, what: str) -> None:
    """``StorageError`` for a file that is not the one which the survey made (what was extracted
    with that file would not fit what is extracted with this one), or that workers could not use."""
    if digest != xxhash.xxh3_128_hexdigest(data):
        raise StorageError(
            f"{what} was changed since the job wrote it",
            hint="the job cannot be resumed; start it again",
        )
    shards = len(job.inputs)
    if name == SPLITTERS_FILE:
        check_splitters(data, what, shards=shards, decreasing=job.pipeline.algorithm.decreasing)
    elif name == CLASSES_FILE:
        check_class_table(data, what, shards=shards)
    else:
        check_renames(data, what, shards=shards)


class _Survey(Struct):
    """What a survey made. ``digests``: the XXH3-128 of each file."""

    files: _Files
    digests: tuple[str, str, str]
    tally: list[TallyRow]


def _parse(data: bytes, what: str) -> _Survey:
    """Others may have written ``data``: it must not choose the names of files on nodes."""
    survey = parse_kept(data, what, _Survey)
    if any(name not in ("", made) for name, made in zip(survey.files, _FILES, strict=True)):
        raise damaged(what, "it names other files than a survey makes")
    return survey


def _splitters_of_shards(job: Job) -> str:
    """The shared file of where partitions begin if records stay in their shards: at the beginnings
    of shards, by the sizes of the shards. "" if there is nothing to divide."""
    ends = np.cumsum([shard.size_bytes for shard in job.inputs])
    count = min(job.movement.partitions, len(ends))
    if count < 2:
        return ""
    targets = np.array([int(ends[-1]) * part // count for part in range(1, count)], np.int64)
    begins = np.unique(np.searchsorted(ends, targets, side="left")) + 1
    begins = begins[begins < len(ends)].astype(np.int64)
    splitters = Splitters(SortKeys(len(begins)), begins, np.zeros(len(begins), np.int64))
    log.debug("%d partitions begin at the beginnings of shards", len(begins) + 1)
    job.attempt.retain_on_nodes(SPLITTERS_FILE, splitters_bytes(splitters))
    return SPLITTERS_FILE


def _sampled_splitters(job: Job, survey: Extraction) -> str:
    """The shared file of where partitions begin, from a sample of the survey; "" without a
    sample."""
    rows_max = max(ROWS_MAX // max(len(job.inputs), 1), 16)
    samples: list[Sampled] = []
    for node, shards in survey.shard_locations().by_node():
        samples += job.runtime.ask(node, Sample(survey.stage.name, shards, rows_max))
    if not samples:
        return ""
    samples.sort(key=lambda sample: sample.shard)
    splitters = pick_splitters(
        SortKeys.concat([sample.sort for sample in samples]),
        np.concatenate([np.full(s.sort.count, s.shard, np.int64) for s in samples]),
        np.concatenate([sample.ordinal for sample in samples]),
        np.concatenate([sample.weight_bytes for sample in samples]),
        job.movement.partitions,
        decreasing=job.pipeline.algorithm.decreasing,
        between_keys=job.pipeline.join is not None,
    )
    log.debug(
        "%d partitions are chosen by samples of %d files", job.movement.partitions, len(samples)
    )
    job.attempt.retain_on_nodes(SPLITTERS_FILE, splitters_bytes(splitters))
    return SPLITTERS_FILE


def _count_classes(job: Job, survey: Extraction) -> str:
    """The shared file of the classes of all shards. ``ContentKeyError`` if there are too many
    classes."""
    counts: list[list[tuple[tuple[int, bytes], int]]] = [[] for _ in job.inputs]
    classes: set[tuple[int, bytes]] = set()
    for node, shards in survey.shard_locations().by_node():
        found = job.runtime.ask(node, ClassCountsOf(survey.stage.name, shards))
        for shard, own in zip(shards.tolist(), found, strict=True):
            counts[shard] = own
            classes.update(key for key, _ in own)
            if len(classes) > CLASSES_MAX:
                raise ContentKeyError(
                    f"there are more than {CLASSES_MAX:,} classes to interleave",
                    hint="interleave.by names what many records have in common, as a label",
                )
    job.attempt.retain_on_nodes(CLASSES_FILE, class_table_bytes(*classes_of_all(counts)))
    return CLASSES_FILE
