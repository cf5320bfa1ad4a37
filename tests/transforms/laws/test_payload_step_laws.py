"""Steps on payload leave what a plain-Python model of them leaves, alone and beside other steps."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from tests.support.datasets import files_of, payloads_in, write_shards
from tests.support.engine import run_local, spec_of
from tests.support.user_functions import doubled, longer, partly, rekeyed, twice, upper
from tests.transforms.laws.test_step_laws import (
    STEPS,
    Model,
    Record,
    drawn,
    flat,
    in_tar,
    in_zip,
    shards_of,
)

pytestmark = pytest.mark.usefixtures("workers_here")


def mapped(function: Any, **args: Any) -> Model:
    """Records as the function itself makes them."""

    def changed(records: list[Record]) -> list[Record]:
        found = []
        for shard, key, members in records:
            result = function({"__key__": key, **members}, **args)
            if result is not None:
                found.append(_record(shard, result.get("__key__", key), result))
        return found

    return changed


def flat_mapped(function: Any) -> Model:
    def changed(records: list[Record]) -> list[Record]:
        return [
            _record(shard, f"{key}-{i}", result)
            for shard, key, members in records
            for i, result in enumerate(function({"__key__": key, **members}))
        ]

    return changed


def _record(shard: str, key: str, result: dict[str, Any]) -> Record:
    members = {
        name: data.encode() if isinstance(data, str) else data
        for name, data in result.items()
        if name != "__key__"
    }
    return shard, key, members


def code(name: str, kind: str = "map", **options: Any) -> dict[str, Any]:
    return {kind: {"python": f"tests.support.user_functions:{name}", **options}}


PAYLOAD_STEPS: dict[str, tuple[dict[str, Any], Model]] = {
    "upper": (code("upper"), mapped(upper)),
    "longer": (code("longer", args={"times": 2}), mapped(longer, times=2)),
    "partly": (code("partly"), mapped(partly)),
    "twice": (code("twice", "flat_map"), flat_mapped(twice)),
    "rekeyed": (code("rekeyed"), mapped(rekeyed)),
    "doubled": (code("doubled", "flat_map"), flat_mapped(doubled)),
}
NUMBERING = {"slice", "slice to the end", "number", "number and hash"}
"""What payload leaves is not counted over all shards: these are refused behind it."""
PAIRS = [
    (one, other)
    for one, other in itertools.product([*PAYLOAD_STEPS, *STEPS], repeat=2)
    if {one, other} & PAYLOAD_STEPS.keys() and not (one in PAYLOAD_STEPS and other in NUMBERING)
]


@pytest.mark.sample(keep=6)
@pytest.mark.parametrize("output", [".tar", ".zip", ".tar.gz"])
@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_steps_on_payload_leave_what_the_model_of_them_leaves(
    one: str, other: str, output: str, tmp_path: Path, rng: random.Random
) -> None:
    records = drawn(rng)
    write_shards(tmp_path / "in", shards_of(records))
    steps = {**STEPS, **PAYLOAD_STEPS}
    wanted = steps[other][1](steps[one][1](records))
    spec = spec_of(
        transform={"steps": [steps[one][0], steps[other][0]]},
        duplicate_keys="ignore",
        output_extension=output,
    )
    report = run_local(tmp_path, spec)
    assert report.records == len(wanted)
    assert _out(tmp_path, output) == flat(wanted)


def _out(root: Path, output: str) -> list[tuple[str, bytes]]:
    if output == ".tar":
        return payloads_in(root / "out")
    paths = sorted((root / "out").glob("out-*"), key=lambda each: (len(each.name), each))
    return [pair for path in paths for pair in (in_zip if output == ".zip" else in_tar)(path)]


def test_the_order_of_what_steps_make_depends_on_no_worker(
    tmp_path: Path, rng: random.Random
) -> None:
    records, found = drawn(rng), []
    for workers in (1, 3):
        root = tmp_path / str(workers)
        write_shards(root / "in", shards_of(records))
        spec = spec_of(
            transform={"steps": [PAYLOAD_STEPS["doubled"][0]]},
            duplicate_keys="ignore",
            algorithm={"kind": "shuffle", "seed": 3},
        )
        run_local(root, spec, workers=workers)
        found.append(files_of(root / "out"))
    assert found[0] == found[1]
