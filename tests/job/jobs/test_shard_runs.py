"""Many small input shards are extracted in runs: what comes out, and what is said of each shard, is
what it is when each is extracted alone."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dsort.errors import StorageError
from tests.support.datasets import Member, Shard, write_shards
from tests.support.engine import run_local, spec_of
from tests.support.internals import (
    POSITION_SHARD,
    RUN_BYTES,
    SHARD,
    SMALL_BYTES,
    BytesColumn,
    Extraction,
    Extractor,
    ExtractRunTask,
    IndexStore,
    InputRow,
    InputsResolved,
    JournalState,
    RunExtracted,
    Scratch,
    Segments,
    ShardExtracted,
    SortKeys,
    Stage,
    Tally,
    record_index,
    runs_of,
)
from tests.support.refusals import raises
from tests.support.surviving import Facts, facts_of

pytestmark = pytest.mark.usefixtures("workers_here")

SHARDS = 96
MOST = 12  # in a run, of so many shards and one worker


def plain(number: int) -> list[Member]:
    """Records ``0`` and ``1``, which every shard has, and one of its own."""
    names = [f"{key}.{end}" for key in ("0", "1", f"own-{number}") for end in ("jpg", "cls")]
    return [Member(name, f"{number} {name}".encode() * (1 + number % 7)) for name in names]


def dataset() -> dict[str, Shard | bytes]:
    shards: dict[str, Shard | bytes] = {
        f"in-{number:03d}.tar": Shard(tuple(plain(number))) for number in range(SHARDS)
    }
    shards["in-030.tar"] = Shard((Member("long/" * 40 + "name.jpg", b"", form="pax"), *plain(30)))
    for number, members in ODD.items():
        shards[f"in-{number:03d}.tar"] = members
    return shards


ODD: dict[int, Shard | bytes] = {
    5: Shard((Member("README", b"a stray"), *plain(5))),
    14: Shard((Member("d/", kind="directory"), *plain(14))),
    20: Shard((*plain(20), Member("0.txt", b"not beside the others"))),
    21: Shard((*plain(21), Member("../up.jpg", b"unsafe"))),
    40: Shard((*plain(40), Member("link.jpg", kind="symlink", target="0.jpg"))),
    41: Shard((*plain(41), Member("own-41.cls", b"a name again"))),
    50: Shard(),
    51: Shard(tuple(plain(51)), end=b""),
    52: b"no tar" * 1000,
}
"""Shards in which there is something to settle."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("runs") / "in"
    write_shards(directory, dataset())
    return directory


def result(
    root: Path, data: Path, monkeypatch: pytest.MonkeyPatch, move: str, *, alone: bool, **spec: Any
) -> tuple[Facts, Counter[int]]:
    """What a job makes, and how many shards had an index file with so many."""
    root.mkdir()
    (root / "in").symlink_to(data)
    found: list[RunExtracted] = []
    extract = Extractor.extract_run

    def noted(self: Extractor, run: ExtractRunTask) -> RunExtracted:
        found.append(extract(self, run))
        return found[-1]

    with monkeypatch.context() as patched:
        patched.setattr(Extractor, "extract_run", noted)
        if alone:
            patched.setattr("dsort.job.extraction.can_run", lambda job: False)
        run_local(root, spec_of(**spec), move=move, workers=1)
    return facts_of(root / "out"), Counter(f.run_shards for run in found for f in run.shards)


EQUAL = {"output_shard_records": None, "output_shard_count": 7, "equalize": "drop"}


@pytest.mark.parametrize(
    ("algorithm", "duplicates", "more", "move"),
    [
        ({"kind": "shuffle", "seed": 1}, "drop", {}, "spill"),
        ({"kind": "alphanumeric"}, "warn", {}, "map"),
        ({"kind": "alphanumeric"}, "warn", {}, "spill"),
        ({"kind": "md5", "decreasing": True}, "rename", {}, "map"),
        ({"kind": "shuffle", "seed": 2}, "warn", EQUAL, "map"),
    ],
    ids=["drop", "map", "spill", "rename", "equalize"],
)
@pytest.mark.sample(keep=1)
def test_runs_of_small_shards_make_what_they_make_alone(
    algorithm: dict[str, Any],
    duplicates: str,
    more: dict[str, Any],
    move: str,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    warns = ("unsafe_names", "duplicated_records", "incomplete_shards")
    config = {
        "corrupt_shards": "skip",
        "duplicate_keys": duplicates,
        **dict.fromkeys(warns, "warn"),
    }
    spec = {"algorithm": algorithm, "config": config, **more}
    made, lengths = result(tmp_path / "runs", data, monkeypatch, move, alone=False, **spec)
    expected, none = result(tmp_path / "alone", data, monkeypatch, move, alone=True, **spec)
    assert made == expected
    assert not none
    if duplicates == "rename":
        assert not lengths, "records that may get new names are extracted alone"
        return
    assert lengths[MOST] == 4 * MOST, "from 24 to 35, and from 60 on, there is nothing to settle"
    assert len(lengths) > 4, "others part the runs that they are in"
    assert len(ODD) <= lengths[0] <= 2 * len(ODD), "and are extracted alone"


def test_runs_are_of_small_shards_one_after_the_other() -> None:
    sizes = [1000] * 100
    sizes[10] = SMALL_BYTES + 1
    missing = [n for n in range(100) if n != 50]
    runs = [[*run] for run in runs_of(sizes, missing, workers=1, buffer_bytes=1 << 30)]
    assert [n for run in runs for n in run] == missing
    assert [10] in runs
    assert all(run == [*range(run[0], run[0] + len(run))] for run in runs)
    assert max(map(len, runs)) == len(missing) // 8
    tight = runs_of(sizes, missing, workers=1, buffer_bytes=3500)
    assert max(map(len, tight)) == 3
    assert all(len(run) == 1 for run in runs_of(sizes, missing, workers=8, buffer_bytes=1 << 30))
    large = [SMALL_BYTES] * 1000
    most = max(map(len, runs_of(large, range(1000), workers=1, buffer_bytes=1 << 30)))
    assert most == RUN_BYTES // SMALL_BYTES


def test_rows_of_shards_that_are_not_in_its_run_are_refused(tmp_path: Path) -> None:
    none = np.zeros(2, np.int64)
    index = record_index(
        ordinal=np.arange(2),
        keys=BytesColumn.of([b"a", b"b"]),
        sort=SortKeys(2),
        members=np.ones(2, np.int32),
        payload_bytes=none,
        stored_bytes=none,
        ranges=Segments(np.arange(3), none, none, np.zeros(0, np.uint8)),
    )
    with Scratch(tmp_path / "scratch", make=True) as scratch:
        store = IndexStore(scratch)
        for shards, is_known in ([7, 9], True), ([7, 71], False), ([6, 7], False):
            store.write_shard(
                "index",
                7,
                index.with_(SHARD, np.array(shards, np.int32)),
                np.array([0, 2]),
                worker=0,
            )
            if is_known:
                assert store.shard_rows("index", 7, 0).rows[SHARD].tolist() == shards
                assert sorted(store.key_hashes("index", 7)[POSITION_SHARD].tolist()) == shards
                assert store.keys_at("index", 7, 9, np.array([1])).tolist() == [b"b"]
                continue
            for read in (
                lambda: store.shard_rows("index", 7, 0),
                lambda: store.key_hashes("index", 7),
                lambda: store.keys_at("index", 7, 9, np.array([1])),
            ):
                with raises(StorageError, "shard 7"):
                    read()


def facts_about(shard: int, worker: int, begin: int, count: int) -> ShardExtracted:
    return ShardExtracted(
        shard, worker, "a", 1, 1, 1, 1, Tally(), run_begin=begin, run_shards=count
    )


def test_a_run_is_kept_if_one_attempt_has_noted_all_of_it() -> None:
    """The second attempt's run is shorter, and it has noted the first shard of it alone: then the
    journal tells of as many shards of that file as the run had."""
    known = [
        facts_about(0, 1, 0, 0),
        *(facts_about(shard, 1, 1, 3) for shard in (1, 2, 3)),
        facts_about(4, 2, 4, 3),
        *(facts_about(shard, 1, 4, 4) for shard in (5, 6)),
    ]
    runtime = SimpleNamespace(
        scratch_nodes=lambda: ("a",), ask=lambda node, request: np.ones(len(request.shards), bool)
    )
    reporter = SimpleNamespace(state=SimpleNamespace(phase="resolve"))
    job: Any = SimpleNamespace(runtime=runtime, reporter=reporter)
    extraction = Extraction(job, Stage("index"))
    extraction.keep(known)
    assert sorted(extraction.done) == [0, 1, 2, 3]


@pytest.mark.parametrize(("begin", "count"), [(2, 2), (0, 4), (1, 1 << 62)])
def test_a_journal_that_tells_of_another_run_than_there_can_be_is_refused(
    begin: int, count: int
) -> None:
    state = JournalState()
    state.apply(InputsResolved(tuple(InputRow(f"{n}.tar", 1, 0, "") for n in range(3))))
    state.apply(facts_about(1, 0, 0, 3))
    state.check()
    state.apply(facts_about(1, 0, begin, count))
    with raises(StorageError):
        state.check()
