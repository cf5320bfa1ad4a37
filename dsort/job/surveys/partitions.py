"""Finds, in one pass, everything that partitions depend on: the sort keys at which they begin, new
keys of duplicates, and the numbers of records in classes that decide the order."""

from __future__ import annotations

from functools import partial

import numpy as np
from msgspec.structs import replace

from dsort.data.index import SortKeys
from dsort.data.tally import Tally, TallyRow, tally_of, tally_rows
from dsort.errors import ContentKeyError
from dsort.job.duplicates import RENAME_FILE, rename_duplicates
from dsort.job.extraction import Extraction, is_even
from dsort.job.job import Fact, Facts, Job
from dsort.job.surveys.survey import Survey
from dsort.log_lines import logger_of
from dsort.order.class_numbers import CLASSES_MAX, classes_of_all
from dsort.order.sort import Splitters, pick_splitters
from dsort.scratch.index import check_splitters, splitters_bytes
from dsort.scratch.requests import (
    ClassCountsOf,
    Sample,
    Sampled,
    check_class_table,
    class_table_bytes,
)
from dsort.scratch.tables import check_renames
from dsort.workers.tasks import Stage

CLASSES_FILE = "classes.col"
SPLITTERS_FILE = "splitters.col"
ROWS_MAX = 2_000_000
"""Rows of the sample that splitters are picked from."""

log = logger_of("job")


class Partitions(Survey[list[TallyRow]]):
    """The shared files of splitters, renames and classes, if they are needed, and the counts of
    renamed records. ``stays``: records stay in their shards, so that splitters depend on no
    records."""

    def __init__(self, job: Job) -> None:
        self.renames = job.pipeline.reading.policies.duplicate_keys == "rename"
        self.classes = bool(job.pipeline.algorithm.placement)
        uneven = not is_even(job)
        self.stays = uneven and job.found.movement.way.spills and job.pipeline.result.keeps_shards
        needs_splitters = job.found.movement.way.spills or self.renames or self.classes
        self.splitters = uneven and needs_splitters and not self.stays
        super().__init__(job)

    def passes_needed(self) -> int:
        return int(self.splitters or self.renames or self.classes)

    def fact(self) -> Fact[list[TallyRow]]:
        job, shards = self.job, len(self.job.inputs)
        decreasing = job.pipeline.algorithm.decreasing
        return Fact(
            f"survey-{job.found.movement.partitions}.json",
            list[TallyRow],
            checks={
                SPLITTERS_FILE: partial(check_splitters, shards=shards, decreasing=decreasing),
                RENAME_FILE: partial(check_renames, shards=shards),
                CLASSES_FILE: partial(check_class_table, shards=shards),
            },
            may_lack_files=True,
        )

    def search(self, known: Facts) -> list[TallyRow]:
        left_out = known.left_out if known.places or known.copies else ""
        stage = Stage("survey", left_out=left_out, places=known.places, borders=known.borders)
        return self.read(stage, known, self._found)

    def facts(self, known: Facts, value: list[TallyRow] | None) -> Facts:
        self.job.reporter.note(tally_of(value or []))
        if self.stays:
            _share_splitters_of_shards(self.job)
        shared = self.job.attempt.shared
        return replace(
            known,
            splitters=shared(SPLITTERS_FILE),
            renames=shared(RENAME_FILE),
            classes=shared(CLASSES_FILE),
        )

    def _found(self, survey: Extraction) -> list[TallyRow]:
        renamed = rename_duplicates(self.job, survey) if self.renames else Tally()
        if self.splitters:
            _share_splitters(self.job, survey)
        if self.classes:
            _count_classes(self.job, survey)
        return tally_rows(renamed)


def _share_splitters_of_shards(job: Job) -> None:
    """Share where partitions begin if records stay in their shards: at the beginnings of shards, by
    the sizes of the shards."""
    ends = np.cumsum([shard.size_bytes for shard in job.inputs])
    count = min(job.found.movement.partitions, len(ends))
    if count < 2:
        return  # there is nothing to divide
    targets = np.array([int(ends[-1]) * part // count for part in range(1, count)], np.int64)
    begins = np.unique(np.searchsorted(ends, targets, side="left")) + 1
    begins = begins[begins < len(ends)].astype(np.int64)
    splitters = Splitters(SortKeys(len(begins)), begins, np.zeros(len(begins), np.int64))
    log.debug("%d partitions begin at the beginnings of shards", len(begins) + 1)
    job.attempt.retain_on_nodes(SPLITTERS_FILE, splitters_bytes(splitters))


def _share_splitters(job: Job, survey: Extraction) -> None:
    """Share where partitions begin, from a sample of the survey, if it has records."""
    rows_max = max(ROWS_MAX // max(len(job.inputs), 1), 16)
    samples: list[Sampled] = []
    for node, shards in survey.shard_locations().by_node():
        samples += job.runtime.ask(node, Sample(survey.stage.name, shards, rows_max))
    if not samples:
        return
    samples.sort(key=lambda sample: sample.shard)
    splitters = pick_splitters(
        SortKeys.concat([sample.sort for sample in samples]),
        np.concatenate([np.full(s.sort.count, s.shard, np.int64) for s in samples]),
        np.concatenate([sample.ordinal for sample in samples]),
        np.concatenate([sample.weight_bytes for sample in samples]),
        job.found.movement.partitions,
        decreasing=job.pipeline.algorithm.decreasing,
        between_keys=bool(job.pipeline.join),
    )
    log.debug(
        "%d partitions are chosen by samples of %d files",
        job.found.movement.partitions,
        len(samples),
    )
    job.attempt.retain_on_nodes(SPLITTERS_FILE, splitters_bytes(splitters))


def _count_classes(job: Job, survey: Extraction) -> None:
    """Share the classes of all shards. ``ContentKeyError`` if there are too many
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
                    hint="interleave.by must be a value that many records share, like a label",
                )
    job.attempt.retain_on_nodes(CLASSES_FILE, class_table_bytes(*classes_of_all(counts)))
