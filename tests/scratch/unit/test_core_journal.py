"""What a journal and its facts tell: events fold into what is known, and what is strange or lacks a
file is refused."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from dsort.errors import InvariantError, JobConflictError, StorageError
from tests.support.internals import (
    JOURNAL_VERSION,
    Fact,
    InputRow,
    InputsResolved,
    JobAccepted,
    JournalEvent,
    JournalState,
    MovementChosen,
    Planned,
    PlannedRow,
    ScratchLost,
    ShardExtracted,
    decode_segment,
    encode_segment,
    extensions_by_output,
)
from tests.support.refusals import raises

ACCEPTED = JobAccepted("job-1", "0.1.0", {"algorithm": {"seed": "7"}}, "2026-01-31T00:00:00+00:00")
INPUTS = InputsResolved((InputRow("a.tar", 10, 5, "x"), InputRow("b\udcff.tar", 20, 6, "y")))
MAP = MovementChosen("map", 4, 2, 1 << 20, 1 << 30, 100, "it fits")
PLANNED = Planned("d1", (PlannedRow("out-0.tar", 3, 6, 100, 4096),))


def extracted(shard: int, *, node: str = "h0", worker: int = 0) -> JournalEvent:
    return ShardExtracted(shard, worker, node, 3, 6, 100, 4096)


def state_after(*events: JournalEvent) -> JournalState:
    state = JournalState()
    state.begin_attempt(1)
    for event in events:
        state.apply(event)
    return state


def test_what_a_lost_scratch_node_had_is_to_be_extracted_again() -> None:
    state = state_after(extracted(0), extracted(1, node="h1"), ScratchLost("h0"))
    assert sorted(state.extracted) == [1]
    state.apply(extracted(0, node="h1"))
    assert sorted(state.extracted) == [0, 1]


def test_another_parting_into_buckets_voids_what_was_extracted() -> None:
    other = MovementChosen("map", 8, 2, 1 << 20, 1 << 30, 100, "it fits")
    wider = MovementChosen("map", 4, 6, 1 << 21, 1 << 31, 100, "more workers now")
    assert sorted(state_after(MAP, extracted(0), wider).extracted) == [0]
    assert state_after(MAP, extracted(0), other).extracted == {}


def test_a_job_is_planned_once_and_for_all() -> None:
    state = state_after(PLANNED, PLANNED)
    with raises(InvariantError):
        state.apply(Planned("d2", PLANNED.shards))


@pytest.mark.parametrize("version", [1, JOURNAL_VERSION - 1, JOURNAL_VERSION + 1, "3", None, 3.5])
def test_a_journal_of_another_format_is_refused(version: object) -> None:
    whole = json.loads(encode_segment([ACCEPTED, extracted(0), INPUTS]))
    with raises(JobConflictError, hint="dsort gc"):
        decode_segment(json.dumps({**whole, "journal": version}).encode())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"journal": 5, "events": [{"kind": "Reconsidered", "count": 1}]}',
        b'{"journal": 5, "events": [{"kind": "ScratchLost", "count": 1, "node": ["a"], "b": [1]}]}',
        b'{"journal": 5, "events": [{"kind": "Committing", "count": 1, "colour": ["red"]}]}',
        b'{"journal": 5, "events": [{"kind": "ShardCreated", "count": 1, "ordinal": [0], '
        b'"xxh3": ["00ff"], "receipt": [""], "md5": [""]}]}',
        b'{"journal": 5, "events": [{"kind": "ScratchLost"}]}',
        b'{"journal": 5, "events": [{"kind": "ScratchLost", "count": 2, "node": ["a"]}]}',
        b'{"journal": 5, "events": [{"kind": "ScratchLost", "count": 1, "node": {"of": [], '
        b'"at": [0]}}]}',
        b'{"journal": 5, "events": [{"kind": "InputsResolved", "count": 1, "inputs": [3]}]}',
        b'{"journal": 5, "events": [{"kind": "Planned", "count": 1, "digest": [""], '
        b'"shards": [{"rows": 0, "columns": []}]}]}',
    ],
)
def test_a_damaged_segment_is_refused(data: bytes) -> None:
    with pytest.raises(StorageError):
        decode_segment(data)


@pytest.mark.exhaustive
def test_a_hundred_thousand_shards_take_a_few_megabytes() -> None:
    facts = [
        ShardExtracted(at, at % 64, f"{at % 16:032x}", 1000, 3000 + at, 10**9 - at, 10**9)
        for at in range(100_000)
    ]
    data = encode_segment(facts)
    assert len(data) < 5_000_000
    assert decode_segment(data) == facts


def job_that_kept(kept: object) -> Any:
    files = {"found.json": json.dumps(kept).encode(), "rows.col": b"rows"}
    return SimpleNamespace(job_id="1", attempt=SimpleNamespace(retained=files.get))


@pytest.mark.parametrize("files", [{}, {"other.col": "0"}])
def test_a_fact_without_its_file_is_damaged(files: dict[str, str]) -> None:
    fact = Fact("found.json", None, checks={"rows.col": lambda data, what: None})
    with pytest.raises(StorageError):
        fact.before(job_that_kept({"value": None, "files": files}))


def test_a_fact_may_lack_a_file_that_it_does_not_need() -> None:
    checks = {"rows.col": lambda data, what: None}
    fact = Fact("found.json", int, checks=checks, may_lack_files=True)
    assert fact.before(job_that_kept({"value": 7, "files": {}})) == (7,)


@pytest.mark.parametrize("text", ["{", "{}", "[1]", "[[1]]", "[" * 100_000])
def test_what_lists_no_extensions_is_damaged(text: str) -> None:
    with raises(StorageError):
        extensions_by_output(text)


def test_extensions_are_listed_by_output() -> None:
    assert extensions_by_output('[["jpg", "cls"], []]') == [["jpg", "cls"], []]
    assert extensions_by_output("") == []
