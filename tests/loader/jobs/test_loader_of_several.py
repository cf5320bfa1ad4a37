"""Loaders of results that were cut alike: one sample has the members of all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import dsort
from dsort.errors import InputError, SpecError
from dsort.loader import Loader
from tests.support.datasets import Member, Shard, write_shards
from tests.support.refusals import raises

pytestmark = pytest.mark.usefixtures("workers_here")

SPEC: dict[str, Any] = {
    "output_format": "out-%03d",
    "output_shard_records": 7,
    "algorithm": {"kind": "shuffle", "seed": 4},
}


def column(extension: str) -> dict[str, Any]:
    return {
        f"s-{shard}.tar": Shard(
            tuple(
                Member(f"{shard}{number:02}.{extension}", f"{extension} {shard} {number}".encode())
                for number in range(20)
            )
        )
        for shard in range(3)
    }


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data root with two columns, each in shards and in a view of its own."""
    monkeypatch.chdir(tmp_path)
    for name, extension in (("images", "jpg"), ("captions", "txt")):
        write_shards(tmp_path / f"{name}-in", column(extension))
        spec = {**SPEC, "input_bck": f"{name}-in"}
        dsort.run({**spec, "output_bck": name})
        dsort.run({**spec, "output_bck": f"{name}-view", "output": "view"})
    return tmp_path


def whole(where: Any, **options: Any) -> list[dict[str, Any]]:
    return list(Loader(where, batch_size=None, **{"cache": "", **options}))


@pytest.mark.parametrize("order", ["sequential", "shards", "window(2)", "records"])
@pytest.mark.parametrize("captions", ["captions", "captions-view"])
def test_a_sample_has_the_members_of_all_results(order: str, captions: str, here: Path) -> None:
    found = whole(["images", captions], order=order, seed=1)
    assert len(found) == len({each["__key__"] for each in found}) == 60
    for each in found:
        number = f"{each['__key__'][0]} {int(each['__key__'][1:])}"
        assert each["jpg"] == f"jpg {number}".encode()
        assert each["txt"] == f"txt {number}".encode()
    loader = Loader(["images", captions], batch_size=None, order=order, seed=1, cache="")
    assert [loader[at] for at in range(60)] == found
    assert [each.key for each in loader.where(3)] == [found[3]["__key__"]] * 2


def test_states_go_on_in_the_same_results_alone(here: Path) -> None:
    both = ["images", "captions"]
    loader = Loader(both, cache="", seed=1)
    rest = iter(loader)
    for _ in range(11):
        next(rest)
    again = Loader(both, cache="", seed=1)
    again.load_state_dict(loader.state_dict())
    wanted = [each["__key__"] for each in whole(both, seed=1)]
    assert [each[0]["__key__"] for each in again] == wanted[11:]
    with pytest.raises(InputError):
        Loader("images", cache="", seed=1).load_state_dict(loader.state_dict())


def test_a_decoder_gets_whole_samples(here: Path) -> None:
    def joined(sample: dict[str, Any]) -> dict[str, Any]:
        return {"both": sample["jpg"] + sample["txt"]}

    found = whole(["images", "captions"], decode=joined)
    assert all(each["both"].startswith(b"jpg") and b"txt" in each["both"] for each in found)


def test_records_with_other_keys_are_named(here: Path) -> None:
    other = {**SPEC, "algorithm": {"kind": "shuffle", "seed": 5}}
    dsort.run({**other, "input_bck": "captions-in", "output_bck": "other"})
    first = whole("images", order="sequential")[0]["__key__"]
    beside = whole("other", order="sequential")[0]["__key__"]
    with raises(InputError, first, beside):
        whole(["images", "other"], order="sequential")
    with pytest.raises(InputError):
        Loader(["images", "other"], order="sequential", cache="")[0]


def test_results_that_are_cut_otherwise_are_refused(here: Path) -> None:
    spec = {**SPEC, "input_bck": "captions-in", "output_bck": "other", "output_shard_records": 8}
    dsort.run(spec)
    with pytest.raises(InputError):
        Loader(["images", "other"], cache="")


def test_members_of_one_extension_in_two_results_are_refused(here: Path) -> None:
    with pytest.raises(InputError):
        whole(["images", "images-view"])


def test_a_list_has_shards_or_results(here: Path) -> None:
    shards = ["images/out-000.tar", "images/out-001.tar"]
    assert len(whole(shards)) == 14
    with pytest.raises(SpecError):
        Loader(["images", "captions/out-000.tar"])
