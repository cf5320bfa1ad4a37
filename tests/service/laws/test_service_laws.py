"""Laws of schedules and of the queue over random cases: cron expressions against a clock that tries
every minute, due times over changes of the clock, retention in which a process dies wherever it
can; and the next job is of the highest priority, and among equals of the owner with the fewest
running jobs, then of the one whose last start is the longest ago."""

from __future__ import annotations

import contextlib
import itertools
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st

from dsort.errors import SpecError
from dsort.service.database.engine import Database, open_database
from dsort.service.jobs.queue import Ending, Limits, claim_next, finish
from dsort.service.jobs.store import JobStore
from dsort.service.schedules.create import parse_definition
from dsort.service.schedules.definition import ScheduleDefinition
from dsort.service.schedules.due import due_times, missed, next_due
from dsort.service.schedules.retention import apply_retention
from dsort.spec.model import JobSpec
from dsort.storage.bucket import Bucket
from dsort.storage.ref import BucketRef
from tests.support.hooked_bucket import HookedBucket
from tests.support.internals import manifest_name
from tests.support.job_rows import job_row
from tests.support.memory_bucket import MemoryBucket
from tests.support.sampling import examples
from tests.support.schedule_results import KnownResults, make_result, publish
from tests.support.schedules import definition, spec

T = TypeVar("T")

ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia")
MOMENTS = st.integers(int(datetime(2011, 1, 1, tzinfo=UTC).timestamp()), 1_900_000_000)
DAY_S = 86_400

# --- what users send -----------------------------------------------------------------------------

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=8),
    st.sampled_from(
        ["{{date}}", "{{epoch}}-%d", "{{x}}", "s3://data/{{date}}", "6h", "* * * * *", "9999-12-31"]
    ),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=25), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=examples(150))
@given(
    st.dictionaries(st.sampled_from([*ScheduleDefinition.model_fields, "odd"]), VALUES, max_size=4),
    st.dictionaries(st.sampled_from([*JobSpec.model_fields, "bck", "Config"]), VALUES, max_size=4),
)
def test_whatever_is_sent_is_a_schedule_or_is_answered_with_what_is_wrong(
    fields: dict[str, Any], of_spec: dict[str, Any]
) -> None:
    try:
        made = parse_definition(
            {"name": "nightly", "cron": "0 2 * * *", "spec": spec(**of_spec), **fields}
        ).definition
    except SpecError:
        return  # any other error fails this
    assert ScheduleDefinition.model_validate(made.stored()) == made
    assert next_due(made, anchor_s=0, after_s=0) != 0


# --- due times -----------------------------------------------------------------------------------


def field(least: int, most: int) -> st.SearchStrategy[str]:
    number = st.integers(least, most)
    spans = st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}")
    steps = st.tuples(st.one_of(st.just("*"), spans), st.integers(1, 9))
    parts = st.one_of(number.map(str), spans, steps.map(lambda each: f"{each[0]}/{each[1]}"))
    return st.one_of(st.just("*"), st.lists(parts, min_size=1, max_size=3).map(",".join))


def allowed(word: str, least: int, most: int) -> set[int]:
    found: set[int] = set()
    for part in word.split(","):
        span, _, step = part.partition("/")
        first, _, last = (f"{least}-{most}" if span == "*" else span).partition("-")
        found.update(range(int(first), int(last or first) + 1, int(step or 1)))
    return found


def allows(text: str, wall: datetime) -> bool:
    """Whether cron would run something when the clock on the wall shows this."""
    minutes, hours, days, _, weekdays = text.split()
    day = wall.day in allowed(days, 1, 31)
    weekday = wall.isoweekday() % 7 in {each % 7 for each in allowed(weekdays, 0, 6)}
    either = not days.startswith("*") and not weekdays.startswith("*")
    fits = (day or weekday) if either else (day and weekday)
    return fits and wall.minute in allowed(minutes, 0, 59) and wall.hour in allowed(hours, 0, 23)


@settings(max_examples=examples(20))
@given(field(0, 59), field(0, 23), field(1, 28), field(0, 7), MOMENTS)
def test_cron_finds_what_trying_every_minute_finds(
    minute: str, hour: str, day: str, weekday: str, after_s: int
) -> None:
    text = f"{minute} {hour} {day} * {weekday}"
    sunday_is_0 = re.sub("([1-7])-7", r"\1-0", weekday)  # also at the end of a range
    made = definition(cron=f"{minute} {hour} {day} * {sunday_is_0}")
    end_s = after_s + 2 * DAY_S
    found = []
    for due_s in due_times(made, anchor_s=0, after_s=after_s):
        if due_s > end_s or len(found) > 200:
            break
        found.append(due_s)
    wall = datetime.fromtimestamp(after_s, UTC).replace(second=0) + timedelta(minutes=1)
    tried = []
    while wall.timestamp() <= end_s and len(tried) < len(found) + 1:
        if allows(text, wall):
            tried.append(wall.timestamp())
        wall += timedelta(minutes=1)
    assert tried[: len(found)] == found


@settings(max_examples=examples(40))
@given(
    st.sampled_from(ZONES),
    st.one_of(
        st.builds(lambda m, h: {"cron": f"{m} {h} * * *"}, field(0, 59), field(0, 23)),
        st.integers(1, 40).map(lambda days: {"every": f"{days}d"}),
        st.integers(1, 40).map(lambda hours: {"every": f"{hours}h"}),
    ),
    MOMENTS,
    st.integers(0, 3 * DAY_S),
)
def test_due_times_rise_and_do_not_depend_on_who_asks_when(
    zone: str, when: dict[str, str], after_s: int, later_s: int
) -> None:
    made = definition(timezone=zone, **when)
    found = list(islice(due_times(made, anchor_s=after_s, after_s=after_s), 30))
    assert found[0] > after_s
    assert all(before < after for before, after in pairwise(found))
    walls = [datetime.fromtimestamp(due, made.zone).replace(tzinfo=None) for due in found]
    if "cron" in when or when["every"].endswith("d"):
        assert len(set(walls)) == len(walls)  # nothing twice, though the clock is put back
    middle_s = after_s + later_s
    expected = [due for due in found if due > middle_s]
    again = list(islice(due_times(made, anchor_s=after_s, after_s=middle_s), len(expected)))
    assert again == expected


@settings(max_examples=examples(40))
@given(st.integers(1, 120), st.integers(0, 4000))
def test_what_was_missed_is_the_newest_and_the_count_of_the_rest(minutes: int, passed: int) -> None:
    made = definition(every=f"{minutes}m")
    now_s = 60 * minutes * passed + 30
    found = missed(made, anchor_s=0, after_s=0, now_s=now_s)
    assert found.newest_s == (60.0 * minutes * passed if passed else None)
    earlier = max(passed - 1, 0)
    assert found.earlier == earlier if not found.at_least else found.earlier <= earlier
    assert found.at_least == (passed > 1000)


# --- retention -----------------------------------------------------------------------------------


class Died(BaseException):
    """The process, not an error that code handles."""


class DyingBucket(HookedBucket):
    """Dies instead of the removal that comes after ``left`` others, or right after it."""

    def __init__(self, inner: Bucket, left: int, *, after: bool) -> None:
        super().__init__(inner)
        self.left = left
        self.after = after

    def around(self, operation: str, name: str, action: Callable[[], T]) -> T:
        if operation not in ("delete", "discard"):
            return action()
        self.left -= 1
        if self.left < 0 and not self.after:
            raise Died
        done = action()
        if self.left < 0:
            raise Died
        return done


NAMES = [f"d{number % 2}/s-{number}" for number in range(6)]
CHANGED = b"c"  # as long as what it replaces
USERS = ["d0/notes.txt", "d1/own.tar", "input.tar"]


@st.composite
def nights(draw: st.DrawFn) -> list[dict[str, Any]]:
    """What each of some runs writes, reads and suffers, in the order in which they end."""
    made = []
    for number in range(draw(st.integers(2, 6))):
        outputs = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
        inputs = [*USERS, *(name for name in NAMES if name not in outputs)]
        made.append(
            {
                "outputs": [*outputs, f"own-{number}/s"],
                "inputs": draw(st.lists(st.sampled_from(inputs), max_size=3, unique=True)),
                "changed": draw(st.sampled_from([None, None, *NAMES])),  # by a user, afterwards
                "deaths": draw(st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=2)),
            }
        )
    return made


@settings(max_examples=examples(100))
@given(nights(), st.lists(st.integers(1, 4), min_size=6, max_size=6))
def test_retention_removes_old_outputs_and_nothing_else_wherever_it_dies(
    runs: list[dict[str, Any]], keeps: list[int]
) -> None:
    keeps.sort(reverse=True)  # fewer and fewer: then several are old at once
    theirs: set[str] = set()
    bucket, known = MemoryBucket("memory://all"), KnownResults()
    for name in USERS:
        bucket.write(name, b"user")
    kept_inputs: list[set[str]] = []
    for number, (run, keep) in enumerate(zip(runs, keeps, strict=False)):
        names = list(run["outputs"])
        result = make_result(number, retain=keep, names=names, input_bck="out", overwrite=True)
        there = {each.name for each in bucket.list()}
        inputs = [name for name in run["inputs"] if name in there]
        before = {name: bucket.read(name) for name in inputs}
        publish(result, bucket, dict.fromkeys(run["outputs"], b"%d" % number), inputs=inputs)
        known.rows.append(result)
        theirs.difference_update(run["outputs"])
        kept_inputs.append(set(inputs))
        for left, after in run["deaths"]:
            dying = DyingBucket(bucket, left, after=after)
            try:
                apply_retention(result, known, opening(dying), now_s=0)
            except Died:
                assert any(each.name for each in bucket.list())
        warned = apply_retention(result, known, opening(bucket), now_s=0)
        if not any(each["changed"] for each in runs[:number]):
            assert [text for text in warned if "they are inputs of" not in text] == []
        newest = runs[max(number + 1 - keep, 0) : number + 1]
        content = {each.name: bucket.read(each.name) for each in bucket.list()}
        for name in USERS:
            assert content[name] == b"user"
        for at in range(max(number + 1 - keep, 0), number + 1):
            assert set(runs[at]["outputs"]) <= content.keys()
            assert kept_inputs[at] <= content.keys()
        for name, data in before.items():
            if name not in run["outputs"]:
                assert content[name] == data
        wanted = {name for each in newest for name in each["outputs"]}
        wanted |= {name for each in kept_inputs[-keep:] for name in each} | {*USERS}
        assert {name for name in content if content[name] == CHANGED} == theirs
        assert content.keys() - wanted - theirs == set()
        assert all(bucket.stat(manifest_name(each.job_id)) for each in known.rows[-keep:])
        if run["changed"] is not None:
            bucket.write(run["changed"], CHANGED)
            theirs.add(run["changed"])


def opening(bucket: Bucket) -> Callable[[BucketRef], Bucket]:
    return lambda ref: bucket


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
def test_the_next_job_is_the_one_that_the_law_of_the_queue_names(
    steps: list[tuple[str, str | None, int]], slots: int
) -> None:
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
            rows = [row for each in one.waiting if (row := one.store.get(each)) is not None]
            listed = one.store.positions(row.number for row in rows)
            assert {row.number: one.store.position(row) for row in rows} == listed


@settings(max_examples=examples(6))
@given(st.permutations(["ann"] * 12 + ["ben"] * 3 + ["cem"] * 2))
def test_an_owner_with_many_jobs_delays_no_other_owner(owners: list[str]) -> None:
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
