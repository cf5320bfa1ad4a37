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
