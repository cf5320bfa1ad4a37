"""What is a record: wherever the groups of a key collide, what webdataset reads as a sample."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from pathlib import Path

import pytest
import webdataset

from tests.support.datasets import Member, Shard
from tests.support.internals import BytesColumn, form_records
from tests.support.tar_reading import scan

SEEDS = [f"records {number}" for number in range(60)]


def samples_of(path: Path) -> list[tuple[str, frozenset[str]]]:
    """(key, extensions) of each sample that webdataset reads."""
    found = webdataset.WebDataset(str(path), shardshuffle=False, empty_check=False)
    return [
        (str(each["__key__"]), frozenset(name for name in each if not name.startswith("__")))
        for each in found
    ]


def records_of(data: bytes) -> list[tuple[str, frozenset[str]]]:
    """The same of each of our records but strays."""
    members = scan("in.tar", data)
    formed = form_records(members, "keep")
    strays = {*formed.strays}
    found = []
    rows, bounds = formed.member_rows.tolist(), formed.member_offsets.tolist()
    for key, (first, last) in zip(formed.keys.tolist(), itertools.pairwise(bounds), strict=True):
        if rows[first] not in strays:
            names = [members.names[row][len(key) + 1 :].decode() for row in rows[first:last]]
            assert len(names) == len(set(names))
            found.append((key.decode(), frozenset(names)))
    return found


def random_groups(rng: random.Random) -> list[tuple[str, list[str]]]:
    """Groups of one key, none beside another of its key."""
    keys = [f"{number:03d}" for number in range(rng.randint(1, 6))]
    extensions = ["jpg", "cls", "json", "tar.gz"]
    groups: list[tuple[str, list[str]]] = []
    for _ in range(rng.randint(0, 14)):
        key = rng.choice(keys)
        if not groups or groups[-1][0] != key:
            groups.append((key, rng.sample(extensions, rng.randint(1, 4))))
    return groups


@pytest.mark.parametrize("seed", SEEDS)
def test_where_groups_collide_there_are_as_many_records_as_webdataset_has_samples(
    seed: str, tmp_path: Path
) -> None:
    print(seed)
    rng = random.Random(seed)
    groups = random_groups(rng)
    members = [
        [Member(f"{key}.{extension}", b"%d" % at) for extension in own]
        for at, (key, own) in enumerate(groups)
    ]
    for own in members:
        if rng.random() < 0.2:  # which neither breaks up a group nor is a sample
            own.insert(rng.randint(0, len(own)), Member("README", b"stray"))
    shard = Shard(tuple(itertools.chain(*members)))
    (tmp_path / "in.tar").write_bytes(shard.data)
    ours, theirs = records_of(shard.data), samples_of(tmp_path / "in.tar")
    parts = Counter(key for key, _ in groups)
    for key in parts:
        own = [extensions for name, extensions in groups if name == key]
        collides = len(set(itertools.chain(*own))) < sum(map(len, own))
        found, read = ([each for each in side if each[0] == key] for side in (ours, theirs))
        if collides or len(own) == 1:
            assert found == read
        else:
            assert found == [(key, frozenset(itertools.chain(*own)))]


def test_many_scattered_records_are_brought_together(tmp_path: Path) -> None:
    names = [b"%05d.%s" % (key, ext) for ext in (b"jpg", b"cls") for key in range(5000)]
    table = scan("in.tar", Shard(tuple(Member(name.decode()) for name in names)).data)
    formed = form_records(table, "keep")
    assert (len(formed), formed.non_adjacent) == (5000, 5000)
    assert formed.keys.tolist() == BytesColumn.of([name[:5] for name in names[:5000]]).tolist()
