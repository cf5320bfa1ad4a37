"""Laws of the journal: what was stored is read, and whatever prefix survives is a prefix of it."""

from __future__ import annotations

import copy

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.internals import (
    Committing,
    InputRow,
    InputsResolved,
    JobAccepted,
    Journal,
    JournalEvent,
    JournalState,
    MovementChosen,
    Planned,
    PlannedRow,
    ScratchLost,
    ShardCreated,
    ShardExtracted,
    Tally,
    decode_segment,
    encode_segment,
    read_journal,
)
from tests.support.memory_bucket import MemoryBucket
from tests.support.sampling import examples

SETTINGS = settings(max_examples=examples(60), deadline=None)

# File names of any bytes: those that are not UTF-8 are lone surrogates from U+DC80 to U+DCFF.
TEXTS = st.text(
    st.one_of(
        st.characters(exclude_categories=["Cs"]),
        st.integers(0xDC80, 0xDCFF).map(chr),
    ),
    max_size=6,
)
GIVEN = TEXTS.filter(bool)
SIZES = st.integers(0, 2**63 - 1)
SMALL = st.integers(0, 3)
TALLIES = st.dictionaries(
    st.sampled_from(["missing", "dup"]),
    st.tuples(st.integers(1, 9), st.lists(TEXTS, max_size=2)),
    max_size=2,
).map(
    lambda found: Tally(
        {kind: count for kind, (count, _) in found.items()},
        {kind: names for kind, (_, names) in found.items()},
    )
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(TEXTS, inner, max_size=2)),
    max_leaves=4,
)
ROWS = st.lists(st.builds(InputRow, TEXTS, SIZES, SIZES, TEXTS), max_size=4).map(tuple)
SHARDS = st.lists(st.builds(PlannedRow, TEXTS, SMALL, SMALL, SIZES, SIZES), max_size=4).map(tuple)
EVENTS = st.lists(
    st.one_of(
        st.builds(JobAccepted, GIVEN, TEXTS, st.dictionaries(TEXTS, JSON, max_size=3), TEXTS),
        st.builds(InputsResolved, ROWS),
        st.builds(MovementChosen, GIVEN, SMALL, SMALL, SIZES, SIZES, SIZES, TEXTS),
        st.builds(
            ShardExtracted,
            SMALL,
            SMALL,
            st.sampled_from(["h0", "h1"]),
            SIZES,
            SIZES,
            SIZES,
            SIZES,
            TALLIES,
        ),
        st.builds(ScratchLost, st.sampled_from(["h0", "h1"])),
        st.builds(Planned, st.just("digest"), SHARDS),
        st.builds(ShardCreated, SMALL, TEXTS, TEXTS, TEXTS),
        st.builds(Committing),
    ),
    max_size=12,
)


@SETTINGS
@given(EVENTS)
def test_a_segment_is_read_as_it_was_written(events: list[JournalEvent]) -> None:
    assert decode_segment(encode_segment(events)) == events


@SETTINGS
@given(EVENTS.filter(bool), st.data())
def test_whatever_segments_survive_tell_a_beginning_of_what_happened(
    events: list[JournalEvent], data: st.DataObject
) -> None:
    bucket = MemoryBucket()
    journal = Journal(bucket, "job", 1, clock=lambda: 0.0)
    ends = []
    for at, event in enumerate(events, 1):
        journal.append(event)
        if data.draw(st.booleans()) or at == len(events):
            journal.flush()
            ends.append(at)
    names = [found.name for found in bucket.list(".dsort/job/journal/")]
    assert len(names) == len(ends)
    survived = data.draw(st.integers(1, len(names)))
    for name in names[survived:]:
        bucket.delete(name)
    expected = JournalState()
    expected.begin_attempt(1)
    for event in copy.deepcopy(events[: ends[survived - 1]]):
        expected.apply(event)
    assert read_journal(bucket, "job") == expected
