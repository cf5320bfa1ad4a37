"""A loader of a view: the samples, orders and states of a loader of its shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import dsort
from dsort.errors import InputError
from dsort.loader import Loader
from tests.support.datasets import small_dataset, write_shards

pytestmark = pytest.mark.usefixtures("workers_here")

SPEC: dict[str, Any] = {
    "input_bck": "in",
    "output_format": "out-%03d",
    "output_shard_records": 10,
    "algorithm": {"kind": "shuffle", "seed": 4},
}


@pytest.fixture(params=[300, 60_000])
def here(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data root with shards of small or large members, and a view of the same records."""
    monkeypatch.chdir(tmp_path)
    write_shards(tmp_path / "in", small_dataset(5, payload_bytes_max=request.param))
    dsort.run({**SPEC, "output_bck": "out"})
    dsort.run({**SPEC, "output_bck": "view", "output": "view"})
    return tmp_path


def samples(where: str, **options: Any) -> list[dict[str, Any]]:
    loader = Loader(where, batch_size=None, **{"cache": "", **options})
    return [{**each, "__url__": each["__url__"].rpartition("/")[2]} for each in loader]


def by_key(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(found, key=lambda each: str(each["__key__"]))


def test_samples_are_those_of_the_shards(here: Path) -> None:
    wanted = samples("out", order="sequential")
    assert samples("view", order="sequential") == wanted
    for order in ("shards", "window(2)"):
        assert by_key(samples("view", order=order, seed=3)) == by_key(wanted)


def test_a_kept_index_gives_the_same_samples(here: Path) -> None:
    first = samples("view", cache="indexes", order="sequential")
    assert list(Path("indexes").rglob("*.col"))
    assert samples("view", cache="indexes", order="sequential") == first
    assert (
        Loader("view", cache="indexes", order="sequential")[3][0]["__key__"]
        == (first[3]["__key__"])
    )


def test_a_state_goes_on_in_the_same_view_alone(here: Path) -> None:
    whole = [each[0]["__key__"] for each in Loader("view", cache="", seed=1)]
    loader = Loader("view", cache="", seed=1)
    rest = iter(loader)
    for _ in range(7):
        next(rest)
    again = Loader("view", cache="", seed=1)
    again.load_state_dict(loader.state_dict())
    assert [each[0]["__key__"] for each in again] == whole[7:]
    other = {**SPEC, "output_bck": "other", "output": "view"}
    dsort.run({**other, "algorithm": {"kind": "shuffle", "seed": 5}})
    with pytest.raises(InputError):
        Loader("other", cache="", seed=1).load_state_dict(loader.state_dict())


def keys(**options: Any) -> list[str]:
    loader = Loader("view", batch_size=None, order="records", **{"cache": "", **options})
    return [str(each["__key__"]) for each in loader]


def test_records_are_in_another_order_in_each_epoch_and_with_each_seed(here: Path) -> None:
    every = by_key(samples("out"))
    assert by_key(samples("view", order="records")) == every
    orders = {tuple(keys(seed=seed, epoch=epoch)) for seed in (0, 1) for epoch in (0, 1)}
    assert len(orders) == 4
    assert all(sorted(order) == [each["__key__"] for each in every] for order in orders)
    places = [each.name for each in Loader("view", cache="").dataset.places]
    mixed = samples("view", order="records")[:10]
    assert len({each["__url__"] for each in mixed}) > len(places) // 2


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("memory_bytes", [1 << 20, 256 << 20])
def test_an_order_of_records_does_not_depend_on_how_it_is_read(
    threads: int, memory_bytes: int, here: Path
) -> None:
    wanted = keys(seed=2)
    assert keys(seed=2, threads=threads, memory_bytes=memory_bytes, cache="indexes") == wanted
    loader = Loader("view", batch_size=None, order="records", seed=2, cache="")
    assert [loader[at]["__key__"] for at in range(len(wanted))] == wanted
    ranks = [
        Loader("view", order="records", seed=2, cache="", rank=rank, world_size=2, remainder="pad")
        for rank in (0, 1)
    ]
    steps = zip(*ranks, strict=True)
    read = [each["__key__"] for step in steps for batch in step for each in batch]
    assert read[: len(wanted)] == wanted


def test_an_order_of_records_goes_on_from_a_state(here: Path) -> None:
    wanted = keys(seed=3)
    loader = Loader("view", order="records", seed=3, cache="", batch_size=2)
    rest = iter(loader)
    for _ in range(5):
        next(rest)
    again = Loader("view", order="records", seed=3, cache="", batch_size=1)
    again.load_state_dict(loader.state_dict())
    assert [each[0]["__key__"] for each in again] == wanted[10:]
    with pytest.raises(InputError):
        Loader("view", seed=3, cache="").load_state_dict(loader.state_dict())


def test_records_of_encoded_shards_may_be_in_any_order(here: Path) -> None:
    dsort.run({**SPEC, "output_bck": "packed", "output_extension": ".tar.gz"})
    found = samples("packed", order="records", seed=1)
    assert sorted(str(each["__key__"]) for each in found) == sorted(keys())
    assert found != samples("packed", order="records", seed=2)


@pytest.mark.parametrize("where", ["out", "view"])
@pytest.mark.parametrize("order", ["window(2)", "records"])
def test_the_records_of_a_step_are_found_in_their_sources(
    where: str, order: str, here: Path
) -> None:
    options: dict[str, Any] = {"order": order, "seed": 1, "world_size": 2, "batch_size": 3}
    ranks = [Loader(where, cache="", rank=rank, **options) for rank in (0, 1)]
    batches = [(rank, sample) for rank, own in enumerate(ranks) for sample in own[2]]
    found = ranks[1].where(2)
    assert [(each.rank, each.key) for each in found] == [(r, s["__key__"]) for r, s in batches]
    for each, (_, sample) in zip(found, batches, strict=True):
        assert each.url == sample["__url__"]
        bucket = "in" if where == "view" else "out"
        assert each.source.startswith((here / bucket).as_uri())
        data = Path(each.source.removeprefix("file://")).read_bytes()
        contents = [value for name, value in sample.items() if not name.startswith("__")]
        assert any(data.startswith(value, each.offset) for value in contents if value)
    with pytest.raises(IndexError):
        ranks[0].where(len(ranks[0]))


def test_a_step_after_a_state_is_that_of_the_rest(here: Path) -> None:
    loader = Loader("view", cache="", seed=1)
    third = loader.where(2)
    rest = iter(loader)
    next(rest)
    again = Loader("view", cache="", seed=1)
    again.load_state_dict(loader.state_dict())
    assert again.where(1) == third


def test_a_record_of_an_encoded_shard_has_no_offset(here: Path) -> None:
    dsort.run({**SPEC, "output_bck": "packed", "output_extension": ".tar.gz"})
    loader = Loader("packed", cache="")
    (found,) = loader.where(0)
    assert (found.offset, found.source) == (None, found.url)
    assert found.key == loader[0][0]["__key__"]


def test_the_url_of_a_shard_opens_it_whatever_its_name(tmp_path: Path) -> None:
    (data,) = small_dataset(5, shards=1).values()
    write_shards(tmp_path, {"100%41 #1?.tar": data})
    odd = tmp_path / "100%41 #1?.tar"
    with dsort.open(odd) as shard, dsort.open(shard.uri) as again:
        assert again.keys == shard.keys
    loader = Loader([odd], cache="")
    assert loader[0][0]["__url__"] == loader.where(0)[0].url == shard.uri
