"""Laws of what is scanned while a shard is written: pieces may end anywhere."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dsort.containers.tar.container import TAR
from dsort.sidecars.kinds import SIDECARS
from dsort.sidecars.shard_index import energon_samples
from tests.support.datasets import Member, Shard
from tests.support.internals import MemberWatch, _samples_bytes, companions, samples_of
from tests.support.sampling import examples

MEMBERS = st.lists(
    st.builds(
        Member,
        st.sampled_from(
            ["a.txt", "b.seg.png", "b.json", "README", ".hid", "d/" + "l" * 120 + ".x"]
        ),
        st.integers(0, 3000).map(bytes),
        form=st.sampled_from(["ustar", "gnu", "pax"]),
    ),
    max_size=12,
)


@settings(max_examples=examples(100), deadline=None)
@given(MEMBERS, st.lists(st.integers(1, 9000), max_size=40), st.sampled_from([1, 700, 5000]))
def test_members_are_those_of_the_whole_shard(
    members: list[Member], cuts: list[int], held_bytes: int
) -> None:
    if any(len(each.name) > 100 and each.form == "ustar" for each in members):
        members = [each for each in members if each.form != "ustar"]
    data = Shard(tuple(members)).data
    before, companions.HELD_BYTES = companions.HELD_BYTES, held_bytes
    try:
        watch = MemberWatch(TAR, "s.tar", len(data))
        at = 0
        for size in [*cuts, len(data)]:
            watch.feed([memoryview(data)[at : at + size], memoryview(b"")])
            at += size
        found = watch.members()
    finally:
        companions.HELD_BYTES = before
    right = TAR.scan("s.tar", data)
    for kind in ("dali", "energon"):
        index = SIDECARS[kind]
        made = index.of_shard("s.tar", found, len(data))
        assert made == index.of_shard("s.tar", right, len(data))
    samples = list(energon_samples(found))
    stored = list(samples_of(_samples_bytes(samples), "samples"))
    assert [each._replace(parts=()) for each in stored] == [
        each._replace(parts=()) for each in samples
    ]
    assert [part[:3] for each in stored for part in each.parts] == [
        part[:3] for each in samples for part in each.parts
    ]
