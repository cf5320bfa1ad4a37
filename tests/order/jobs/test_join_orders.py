"""Joined records in the order of what one piece says, or of where the first one is."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest

import dsort
from dsort.errors import ContentKeyError, DuplicateError, JoinError, SpecError
from dsort.options import RunOptions
from dsort.spec.load import parse_spec
from tests.support.datasets import Member, Shard, files_of, write_shards
from tests.support.inline_runtime import Moved, run_inline
from tests.support.refusals import raises
from tests.support.verified import verify_result

WAYS = [
    Moved("map"),
    Moved("spill", workers=2, nodes=2, partitions=5, buffer_bytes=1 << 13, order_seed=4, losses=1),
]
BY_SCORE = {"kind": "content", "extension": ".score", "content_key_type": "int"}
Piece = tuple[str, dict[str, bytes]]


def spec_of(**fields: Any) -> dict[str, Any]:
    return {
        "inputs": [{"name": name, "input_bck": name} for name in ("a", "b", "c")],
        "join": {"by": "key", "nonmatch": "none"},
        "output_bck": "out",
        "output_format": "s-%d",
        "output_shard_records": 7,
        "algorithm": BY_SCORE,
        "overwrite": True,
        **fields,
    }


def drawn(root: Path, rng: random.Random) -> dict[str, list[Piece]]:
    """The pieces of each input, in the order of its shards. Scores tie, and some are missing."""
    found: dict[str, list[Piece]] = {}
    for name, extension in (("a", "jpg"), ("b", "score"), ("c", "txt")):
        keys = rng.sample([f"{place}{n:02d}" for n in range(25) for place in ("", "d/")], 40)
        pieces = []
        for key in keys:
            content = b"%d" % rng.randrange(6) if extension == "score" else key.encode()
            pieces.append((key, {extension: content}))
        shards = [pieces[number::2] for number in range(2)]
        for number, part in enumerate(shards):
            members = [
                Member(f"{key}.{each}", data) for key, own in part for each, data in own.items()
            ]
            write_shards(root / name, {f"{number}.tar": Shard(tuple(members))})
        found[name] = [*itertools.chain(*shards)]
    return found


def joined(pieces: dict[str, list[Piece]], nonmatch: str) -> dict[str, dict[str, bytes]]:
    """By key, in the order of their first pieces."""
    found: dict[str, dict[str, bytes]] = {}
    for own in pieces.values():
        for key, members in own:
            found.setdefault(key, {}).update(members)
    return {key: each for key, each in found.items() if nonmatch == "none" or len(each) == 3}


def records_in(root: Path, job_id: str) -> list[tuple[str, dict[str, bytes]]]:
    verified = verify_result(root, job_id)
    assert (verified.problems, verified.warnings) == ((), ())
    records = dsort.read_shards("out", job_id=job_id, options=RunOptions(root=root))
    return [
        (each.key, {name[len(each.key) + 1 :]: data for name, data in each.members.items()})
        for each in records
    ]


@pytest.mark.sample(keep=3)
@pytest.mark.parametrize("nonmatch", ["none", "skip"])
@pytest.mark.parametrize("decreasing", [False, True])
@pytest.mark.parametrize("missing", ["first", "last"])
def test_joined_records_are_sorted_by_what_one_piece_says(
    missing: str, decreasing: bool, nonmatch: str, tmp_path: Path, rng: random.Random
) -> None:
    wanted = list(joined(drawn(tmp_path, rng), nonmatch).items())

    def score(record: tuple[str, dict[str, bytes]]) -> tuple[int, int]:
        content = record[1].get("score")
        if content is None:
            return (0 if missing == "first" else 2), 0
        return 1, -int(content) if decreasing else int(content)

    algorithm = {**BY_SCORE, "content_key_missing": missing, "decreasing": decreasing}
    spec = spec_of(algorithm=algorithm, join={"by": "key", "nonmatch": nonmatch})
    found = []
    for moved in WAYS:
        report = run_inline(spec, tmp_path, moved)
        assert records_in(tmp_path, report.job_id) == sorted(wanted, key=score)
        found.append(files_of(tmp_path / "out"))
    assert found[0] == found[1]


@pytest.mark.parametrize("moved", WAYS, ids=["map", "spill"])
def test_joined_records_stay_in_the_order_of_their_first_pieces(
    moved: Moved, tmp_path: Path, rng: random.Random
) -> None:
    wanted = joined(drawn(tmp_path, rng), "none")
    spec = spec_of(algorithm={"kind": "none"}, verify="content")
    assert records_in(tmp_path, run_inline(spec, tmp_path, moved).job_id) == list(wanted.items())
    outputs = [{"name": "d", "when": "key.startsWith('d')"}, {"name": "rest", "when": True}]
    spec = spec_of(algorithm={"kind": "none"}, outputs=outputs, output_format="{split}-%d")
    found = records_in(tmp_path, run_inline(spec, tmp_path, moved).job_id)
    assert found == sorted(wanted.items(), key=lambda each: not each[0].startswith("d"))


@pytest.mark.parametrize(("conflict", "which"), [("first", 0), ("last", 1)])
@pytest.mark.parametrize("moved", WAYS, ids=["map", "spill"])
def test_what_stays_of_a_conflict_says_the_order(
    moved: Moved, conflict: str, which: int, tmp_path: Path, rng: random.Random
) -> None:
    scores = {f"k{n:02d}": (rng.randrange(9), rng.randrange(9)) for n in range(20)}
    for at, name in enumerate("ab"):
        members = [Member(f"{key}.score", b"%d" % both[at]) for key, both in scores.items()]
        write_shards(tmp_path / name, {"0.tar": Shard(tuple(members))})
    inputs = [{"name": name, "input_bck": name} for name in "ab"]
    spec = spec_of(inputs=inputs, join={"by": "key", "conflict": conflict})
    found = records_in(tmp_path, run_inline(spec, tmp_path, moved).job_id)
    wanted = sorted(scores.items(), key=lambda each: each[1][which])
    assert found == [(key, {"score": b"%d" % both[which]}) for key, both in wanted]


def test_what_cannot_be_ordered_or_joined_is_named(tmp_path: Path, rng: random.Random) -> None:
    drawn(tmp_path, rng)
    with raises(ContentKeyError, ".score"):
        run_inline(spec_of(), tmp_path, WAYS[1])
    with raises(JoinError, "10 records"):
        run_inline(spec_of(join={"by": "key"}), tmp_path, WAYS[0])
    write_shards(tmp_path / "c", {"9.tar": Shard((Member("00.txt", b""), Member("x.score", b"1")))})
    write_shards(tmp_path / "b", {"9.tar": Shard((Member("x.score", b"1"),))})
    spec = spec_of(algorithm={**BY_SCORE, "content_key_missing": "last"})
    with pytest.raises((JoinError, DuplicateError)):
        run_inline(spec, tmp_path, WAYS[1])
    keys = {"kind": "keys", "keys": [BY_SCORE, {"kind": "shuffle"}], "seed": 1}
    with raises(SpecError, "join", paths=["algorithm.kind"]):
        parse_spec(spec_of(algorithm=keys))
