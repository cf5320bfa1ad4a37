"""Laws of the queue: who comes next is of the highest priority, and among equals of the owner with
the fewest running jobs, then of the one whose last start is the longest ago; nobody starves."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from dsort.service.database.engine import Database, open_database
from dsort.service.jobs.queue import Ending, Limits, claim_next, finish
from dsort.service.jobs.store import JobStore
from tests.support.job_rows import job_row
from tests.support.sampling import examples

OWNERS = ("ann", "ben", "cem")
DONE = Ending("finished", 0)


class Queue:
    """A queue with so many slots, and who waits in it and runs by what was done here."""

    def __init__(self, database: Database, slots: int) -> None:
        self.database, self.store = database, JobStore(database)
        self.limits = Limits(slots, 1)
        self.waiting: dict[str, tuple[int, str]] = {}  # job -> (priority, owner), in their order
        self.running: dict[str, str] = {}
        self.last_start: dict[str, int] = {}
        self.numbers = itertools.count(1)

    def submit(self, owner: str, priority: int) -> None:
        job_id = f"job{next(self.numbers)}"
        new = job_row(job_id, owner=owner, priority=priority)
        self.store.submit(new)
        self.waiting[job_id] = (priority, owner)

    def expected(self) -> str | None:
        """The job that comes next by the law."""
        counts = Counter(self.running.values())
        ranks = {
            job_id: (-priority, counts[owner], self.last_start.get(owner, 0), number)
            for number, (job_id, (priority, owner)) in enumerate(self.waiting.items())
        }
        return min(ranks, key=ranks.__getitem__, default=None)

    def start(self) -> str | None:
        row = claim_next(self.database, host="h", replica="r", limits=self.limits, now_s=1.0)
        if row is None:
            return None
        self.last_start[row.owner] = next(self.numbers)
        self.running[row.job_id] = row.owner
        del self.waiting[row.job_id]
        return row.job_id

    def end(self, number: int) -> None:
        if self.running:
            job_id = sorted(self.running)[number % len(self.running)]
            assert finish(self.database, job_id, 1, DONE, now_s=2.0)
            del self.running[job_id]


@contextlib.contextmanager
def queue(slots: int) -> Iterator[Queue]:
    with (
        tempfile.TemporaryDirectory() as directory,
        open_database(f"sqlite:///{Path(directory) / 'service.db'}") as database,
    ):
        yield Queue(database, slots)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.sampled_from(OWNERS), st.sampled_from([-1, 0, 0, 0, 3])),
        st.tuples(st.just("start"), st.none(), st.just(0)),
        st.tuples(st.just("end"), st.none(), st.integers(0, 5)),
    ),
    min_size=5,
    max_size=30,
)


@settings(max_examples=examples(15))
@given(STEPS, st.integers(1, 3))
def test_who_comes_next(steps: list[tuple[str, str | None, int]], slots: int) -> None:
    with queue(slots) as one:
        for what, owner, number in steps:
            if what == "submit":
                assert owner is not None
                one.submit(owner, number)
            elif what == "end":
                one.end(number)
            else:
                expected = one.expected() if len(one.running) < slots else None
                assert one.start() == expected


@settings(max_examples=examples(6))
@given(st.permutations(["ann"] * 12 + ["ben"] * 3 + ["cem"] * 2))
def test_whoever_submits_much_makes_nobody_wait(owners: list[str]) -> None:
    with queue(1) as one:
        for owner in owners:
            one.submit(owner, 0)
        places: dict[str, list[int]] = {owner: [] for owner in OWNERS}
        listed = one.store.positions(range(1, len(owners) + 1))
        row_of = {job_id: one.store.get(job_id) for job_id in one.waiting}
        shown_places = {
            job_id: listed[row.number] for job_id, row in row_of.items() if row is not None
        }
        for place in range(1, len(owners) + 1):
            job_id = one.start()
            assert job_id is not None
            assert shown_places[job_id] == place  # as it was shown before
            places[one.running[job_id]].append(place)
            one.end(0)
        # A job waits for at most one of each other owner for each of its own owner's.
        for own in places.values():
            for nth, place in enumerate(own, 1):
                assert place <= nth * len(OWNERS)
