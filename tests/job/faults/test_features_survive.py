"""A job of each feature whose coordinator is killed, and that is resumed, has the shards and the
counts of one that nothing happened to: what the first attempt counted or chose is kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.coordinators import Coordinators
from tests.support.datasets import Member, Shard, files_of, small_dataset, write_shards
from tests.support.engine import run_local, spec_of
from tests.support.fault_points import PointFault
from tests.support.surviving import job_in

SHUFFLE = {"algorithm": {"kind": "shuffle", "seed": 3}}
WRITES = PointFault("create:end", 2, "kill parent")
PUBLISHES = PointFault("publish:end", 2)


@dataclass(frozen=True)
class Feature:
    """``kept``: the file that the first attempt leaves for the next; ``inputs``: by bucket, a seed
    of records, a number of shards, and of records in each; ``shards``: the least that come out."""

    spec: Mapping[str, Any]
    kept: str = "journal"
    fault: PointFault = WRITES
    inputs: Mapping[str, tuple[str, int, int]] | None = None
    shards: int = 6

    def prepare(self, root: Path) -> None:
        inputs = self.inputs or {"in": ("in", 4, 20)}
        for bucket, (seed, shards, records) in inputs.items():
            write_shards(root / bucket, small_dataset(seed, shards=shards, records=records))


class Joined(Feature):
    """A join of two inputs: of 23 keys, 16 are in both."""

    def prepare(self, root: Path) -> None:
        for name, extensions, keys in (("old", "ab", range(20)), ("labels", "bc", range(4, 23))):
            members = [Member(f"{n:02d}.{e}", name.encode()) for n in keys for e in extensions]
            parts = {"s-0.tar": Shard(tuple(members[:16])), "s-1.tar": Shard(tuple(members[16:]))}
            write_shards(root / name, parts)


def of_inputs(*inputs: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    spec = spec_of(**{**SHUFFLE, **fields}, inputs=list(inputs))
    return {name: value for name, value in spec.items() if name != "input_bck"}


def joining(**fields: Any) -> dict[str, Any]:
    inputs = [{"name": name, "input_bck": name} for name in ("old", "labels")]
    join = {"nonmatch": "skip", "conflict": "first"}
    return of_inputs(*inputs, output_shard_records=4, join=join, **fields)


OUTPUTS = {
    **spec_of(**SHUFFLE, output_format="{split}-{n:02d}-of-{total:02d}", index=["huggingface"]),
    "outputs": [
        {"name": "low", "when": 'ext("cls") < 30'},
        {"name": "none", "when": "ordinal < 0", "output_shard_count": 2},
        {"name": "high", "when": True, "output_shard_count": 4},
    ],
}
BY_CONTENT = {"kind": "content", "extension": ".c", "content_key_type": "string"}
FEATURES: dict[str, Feature] = {
    "exact outputs": Feature(
        {
            **spec_of(**SHUFFLE, output_format="{split}-%d"),
            "outputs": [{"name": "train", "fraction": 0.7}, {"name": "val", "fraction": 0.3}],
            "exact": True,
            "stratify": "size() % 3",
        },
        "borders.col",
        inputs={"in": ("in", 4, 12)},
    ),
    "interleaved classes": Feature(
        spec_of(algorithm={"kind": "shuffle", "seed": 3, "interleave": {"by": "cls"}}),
        "classes.col",
        shards=11,
    ),
    "sizes of compressed shards": Feature(
        spec_of(
            **SHUFFLE,
            output_extension=".tgz",
            output_shard_records=None,
            output_shard_size=3000,
            output_shard_size_counts="file",
        ),
        "encoded-sizes.json",
        inputs={"in": ("encoded", 3, 12)},
        shards=3,
    ),
    "numbers of records": Feature(
        spec_of(
            **SHUFFLE,
            transform={
                "steps": [{"slice": "2:60"}, {"sample": {"fraction": 0.8}}, {"rekey": "%05d"}]
            },
        ),
        "positions.json",
        shards=11,
    ),
    "a mix": Feature(
        of_inputs(
            {"name": "web", "input_bck": "in", "records": 50},
            {"name": "code", "input_bck": "code", "weight": 0.5},
            duplicate_keys="ignore",
        ),
        "mix.json",
        inputs={"in": ("web", 3, 7), "code": ("code", 2, 9)},
        shards=11,
    ),
    "a mix of what is deduplicated": Feature(
        of_inputs(
            {"name": "web", "input_bck": "in", "records": 17},
            {"name": "code", "input_bck": "code", "weight": 0.9},
            duplicate_keys="ignore",
            deduplicate={"by": "content"},
        ),
        "equal.col",
        inputs={"in": ("web", 3, 7), "code": ("web", 2, 9)},
        shards=4,
    ),
    "outputs, as they are written": Feature(OUTPUTS, inputs={"in": ("outputs", 3, 12)}),
    "outputs, as they are published": Feature(
        OUTPUTS, fault=PUBLISHES, inputs={"in": ("outputs", 3, 12)}
    ),
    "kept shards": Feature(
        {
            "input_bck": "in",
            "output_bck": "out",
            "keep_shards": True,
            "transform": {"steps": [{"filter": 'ext("cls") < 20'}]},
        },
        fault=PUBLISHES,
        inputs={"in": ("kept", 3, 12)},
        shards=3,
    ),
    "a join, while it reads": Joined(
        joining(), fault=PointFault("extract:end", 3, "kill parent"), shards=4
    ),
    "a join, while it writes": Joined(
        joining(), fault=PointFault("create:end", 3, "kill parent"), shards=4
    ),
    "a join in input order": Joined(
        joining(algorithm={"kind": "none"}),
        fault=PointFault("extract:end", 3, "kill parent"),
        shards=4,
    ),
    "a join that is converted": Joined(
        joining(
            algorithm={**BY_CONTENT, "content_key_missing": "last"}, output_extension=".msgpack"
        ),
        fault=PointFault("create:end", 3, "kill parent"),
        shards=4,
    ),
}


def counts_of(report: Mapping[str, Any]) -> tuple[dict[str, int], dict[str, int]]:
    """The records of each output, and what each reaction was about."""
    outputs = {each["name"]: each["records"] for each in report.get("outputs") or ()}
    return outputs, {each["kind"]: each["count"] for each in report["reactions"]}


@pytest.mark.sample(keep=4)
@pytest.mark.parametrize("name", FEATURES)
def test_a_resumed_job_writes_and_counts_what_an_undisturbed_one_does(
    name: str, begun: Coordinators, tmp_path: Path
) -> None:
    feature, there, here = FEATURES[name], tmp_path / "there", tmp_path / "here"
    for root in (there, here):
        feature.prepare(root)
    report = run_local(there, dict(feature.spec), move="map")
    arguments = ["start", "-f", json.dumps(feature.spec), "--workers", "1", "--move", "spill"]
    begun.killed(here, *arguments, by=feature.fault)
    job_id = job_in(here / "out")
    assert [*here.glob(f"out/.dsort/{job_id}/**/*{feature.kept}*")]
    ended = begun.done(here, "resume", job_id, "--bucket", "out", "--json")
    made, expected = (files_of(root / "out", "*.*") for root in (here, there))
    for files in (made, expected):
        for name_of_index in [each for each in files if each.startswith("20")]:
            del files[name_of_index]  # it has the id of its job
    assert made == expected
    assert len(made) >= feature.shards
    outputs, reactions = counts_of(json.loads(ended.out))
    assert outputs == {each.name: each.records for each in report.outputs}
    assert reactions == {each.kind: each.count for each in report.reactions}
