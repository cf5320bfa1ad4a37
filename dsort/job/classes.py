"""How many records of each class there are, where their numbers decide the order: by a survey."""

from __future__ import annotations

from dsort.errors import ContentKeyError
from dsort.job.extract import Extraction
from dsort.job.job import Job
from dsort.order.class_numbers import CLASSES_MAX, classes_of_all
from dsort.scratch.class_table import class_table_bytes
from dsort.scratch.requests import ClassCountsOf

CLASSES_FILE = "classes.col"


def count_job_classes(job: Job, survey: Extraction) -> str:
    """The shared file of the classes of all shards. ``ContentKeyError`` if these are too many to be
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
    job.retain_on_nodes(CLASSES_FILE, class_table_bytes(*classes_of_all(counts)))
    return CLASSES_FILE
