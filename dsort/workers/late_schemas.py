"""Finds the extensions of members for outputs that are written late and need the same members in
each record. The coordinator makes one schema from the reports of all shards."""

from __future__ import annotations

import json

import numpy as np

from dsort.data.record_table import RecordTable
from dsort.data.row_bytes import distinct_rows
from dsort.errors import StorageError
from dsort.pipeline.pipeline import Pipeline
from dsort.workers.batch import Placed


def reported_extensions(pipeline: Pipeline, table: RecordTable, placed: Placed) -> str:
    """The extensions of the members of a shard's records, for each output that needs them, as JSON;
    "" if no output does."""
    wanted = [each.is_late and each.container.schemas is not None for each in pipeline.outputs]
    if not any(wanted):
        return ""
    names, rows = table.members.names, table.records.member_rows
    key_bytes = table.records.key_bytes[rows]
    group = np.zeros(len(table), np.int32) if placed.group is None else placed.group
    of_rows = group[table.record_of] if len(wanted) > 1 else np.zeros(len(rows), np.int32)
    found: list[list[str]] = []
    for output, is_wanted in enumerate(wanted):
        own = np.flatnonzero(of_rows == output) if is_wanted else rows[:0]
        starts = names.offsets[:-1][rows[own]] + key_bytes[own]
        _, first = distinct_rows(names.blob, starts, names.lengths[rows[own]] - key_bytes[own])
        texts = (names[int(rows[own[at]])][int(key_bytes[own[at]]) :] for at in first.tolist())
        found.append(sorted(text[1:].decode("utf-8", "replace") for text in texts if text))
    return json.dumps(found)


def extensions_by_output(schema: str) -> list[list[str]]:
    """Read the text that :func:`reported_extensions` made. ``StorageError`` if it is damaged, as it
    may come from a place where others write."""
    try:
        found = json.loads(schema or "[]")
    except (ValueError, RecursionError):
        found = None
    lists = isinstance(found, list) and all(isinstance(each, list) for each in found)
    if not lists or not all(isinstance(name, str) for each in found for name in each):
        raise StorageError("what the journal says of the members of records is damaged")
    return [[*map(str, each)] for each in found]
