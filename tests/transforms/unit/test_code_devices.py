"""GPUs and CPUs for user code: what steps want, how it is dealt out, what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dsort.errors import TransformError
from dsort.spec.load import parse_spec
from dsort.transforms.base import Step
from tests.support.engine import spec_of
from tests.support.internals import (
    CodeRoom,
    GpuNeeds,
    GpuPlace,
    Scratch,
    gpus_here,
    room_here,
    steps_of,
)
from tests.support.refusals import raises


def steps_with(*resources: dict[str, Any]) -> Sequence[Step]:
    steps = [{"map": {"python": "a:b", "resources": each}} for each in resources]
    spec = spec_of(transform={"steps": [{"sample": {"fraction": 1}}, *steps]})
    return steps_of(parse_spec(spec).spec)


def gpus(*wanted: float) -> Sequence[Step]:
    return steps_with(*({"num_gpus": each} for each in wanted))


@pytest.mark.parametrize(
    ("wanted", "workers", "dealt"),
    [
        ([1], 4, [("", "0"), ("", "1"), ("", "2"), ("", "3")]),
        ([2], 2, [("", "0,1"), ("", "2,3")]),
        ([3], 1, [("", "0,1,2")]),
        ([0.5], 8, [("", "0"), ("", "0"), ("", "1"), ("", "1")]),
        ([0.3], 12, [("", "0"), ("", "0"), ("", "0"), ("", "1")]),
        ([0.5, 0.5], 4, [("", "0", "0"), ("", "1", "1")]),
        ([0.5, 0.7], 2, [("", "0", "1"), ("", "2", "3")]),
        ([1, 0, 1], 2, [("", "0", "", "1"), ("", "2", "", "3")]),
        ([0.5, 2], 1, [("", "0", "1,2")]),
        ([5], 0, []),
    ],
)
def test_each_process_gets_gpus_that_no_other_has(
    wanted: list[float], workers: int, dealt: list[tuple[str, ...]]
) -> None:
    needs = GpuNeeds.of(gpus(*wanted))
    assert needs.workers(4) == workers
    assert [needs.dealt("0123", place) for place in range(len(dealt))] == dealt


def test_a_place_is_free_again_once_its_worker_is_gone(tmp_path: Path) -> None:
    scratch, needs = Scratch(tmp_path / "scratch", make=True), GpuNeeds.of(gpus(1))
    first, second = (GpuPlace(needs, ("a", "b"), scratch) for _ in range(2))
    told = {place.environment(1)["CUDA_VISIBLE_DEVICES"] for place in (first, second)}
    assert told == {"a", "b"}
    gone = first.environment(1)
    first.close()
    third = GpuPlace(needs, ("a", "b"), scratch)
    assert third.environment(1) == gone
    assert third.environment(0) == {}
    second.close()
    third.close()


@pytest.mark.parametrize(
    ("said", "found"),
    [("", ()), ("-1", ()), ("3,1", ("3", "1")), ("GPU-x, 2,-1,4", ("GPU-x", "2"))],
)
def test_a_job_uses_the_gpus_that_it_is_let_see(
    said: str, found: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", said)
    assert gpus_here() == found


def test_steps_that_want_more_gpus_than_there_are_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with raises(TransformError, "1 GPU"):
        room_here(gpus(1), 8)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with raises(TransformError, "2 GPUs", "1"):
        room_here(gpus(1, 1), 8)
    assert room_here(gpus(0.5), 8) == CodeRoom(2, ("0",))


def test_steps_that_use_several_cpus_run_in_fewer_processes() -> None:
    assert room_here(steps_with({"num_cpus": 4}, {"num_cpus": 3}), 9) == CodeRoom(2)
    assert room_here(steps_with({"num_cpus": 4}), 2) == CodeRoom(1)
    assert room_here(steps_with({"num_cpus": 1}), 2) == CodeRoom()
