"""The feed hands every event to all who watch its job, each once, in whatever order they are
committed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import insert

from dsort.service import change_feed as feed
from dsort.service.change_feed import ChangeFeed
from dsort.service.database.engine import Database, open_database
from dsort.service.database.tables import JobRow, events
from dsort.service.jobs.rows import EventRow
from dsort.service.jobs.store import JobStore


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with open_database(f"sqlite:///{tmp_path}/service.db") as opened:
        store = JobStore(opened)
        for job_id in ("a", "b"):
            new = JobRow(
                job_id=job_id,
                kind="run",
                owner="me",
                spec={},
                input_uri="file:///in",
                output_uri="file:///out",
                claims=[],
            )
            store.submit(new)
        yield opened


def note(database: Database, number: int, job_id: str = "a") -> None:
    row = {"number": number, "job_id": job_id, "at": 0.0, "kind": "log", "data": {"n": number}}
    with database.writing() as connection:
        connection.execute(insert(events), row)


async def taken(queue: feed.Subscriber) -> list[int | None]:
    await asyncio.to_thread(int)  # what was handed on comes with the loop's next turn
    found: list[int | None] = []
    while not queue.empty():
        event = queue.get_nowait()
        found.append(None if event is None else event.number)
    return found


def test_all_who_watch_a_job_learn_of_it_and_nobody_else_does(database: Database) -> None:
    heard: list[EventRow] = []

    async def watch() -> None:
        source = ChangeFeed(JobStore(database), trails=False, listener=heard.append)
        with source.watch("a") as one, source.watch("a") as two, source.watch("b") as other:
            note(database, 10)
            note(database, 11, "b")
            note(database, 12)
            source.turn()
            source.turn()
            assert await taken(one) == await taken(two) == [10, 12]
            assert await taken(other) == [11]
        assert [event.number for event in heard] == [10, 11, 12]

    asyncio.run(watch())


def test_an_event_that_is_committed_late_is_reported_late_and_once(database: Database) -> None:
    async def watch() -> None:
        source = ChangeFeed(JobStore(database), trails=True)
        with source.watch("a") as queue:
            note(database, 20)
            source.turn()
            note(database, 15)
            note(database, 21)
            source.turn()
            source.turn()
            assert await taken(queue) == [20, 15, 21]

    asyncio.run(watch())


def test_a_stream_that_falls_far_behind_is_ended(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "WAITING_MAX", 3)

    async def watch() -> None:
        source = ChangeFeed(JobStore(database), trails=False)
        with source.watch("a") as queue:
            for number in range(10, 20):
                note(database, number)
            source.turn()
            assert None in await taken(queue)  # and it asks again for what it has not seen

    asyncio.run(watch())


def test_the_end_of_the_feed_ends_all_streams(database: Database) -> None:
    async def watch() -> None:
        source = ChangeFeed(JobStore(database), trails=False)
        with source.watch("a") as queue:
            source.close()
            assert await taken(queue) == [None]
        with source.watch("a") as queue:
            assert await taken(queue) == [None]

    asyncio.run(watch())
