"""An algorithm that is not in the package: registered, used in a spec, run, planned, verified."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dsort import api
from dsort.errors import SpecError, SpecProblem
from dsort.options import RunOptions
from dsort.spec.load import parse_spec
from dsort.spec.model import schema
from tests.support.by_size import BySize
from tests.support.datasets import Shard, files_of, write_shards
from tests.support.engine import keys_in, plan_local, record, run_local, spec_of
from tests.support.internals import ALGORITHMS, Alphanumeric, VerifyReport, manifest_name, register
from tests.support.refusals import raises

pytestmark = pytest.mark.usefixtures("workers_here")

SIZES = {"a": 900, "b": 30, "c": 4000, "d": 30, "e": 2, "f": 1}
SHARDS = {
    f"in-{at}.tar": Shard(
        [m for key in keys for m in record(key, "jpg", payload=b"x" * SIZES[key])]
    )
    for at, keys in enumerate(["abc", "def"])
}
BUILT_IN = "none, alphanumeric, shuffle, md5, content, keys or value"


@pytest.fixture
def by_size() -> Iterator[None]:
    register(BySize)
    yield
    del ALGORITHMS[BySize.kind]


def verified(manifest: Path, root: Path) -> VerifyReport:
    return api.verify(manifest.read_bytes(), options=RunOptions(root=root))


def problems_of(algorithm: dict[str, Any]) -> list[SpecProblem]:
    with pytest.raises(SpecError) as refused:
        parse_spec(spec_of(algorithm=algorithm))
    return list(refused.value.problems)


@pytest.mark.sample(keep=4)
@pytest.mark.usefixtures("by_size")
@pytest.mark.parametrize(
    ("options", "order"),
    [
        ({}, "febdac"),
        ({"decreasing": True}, "cabdef"),
        ({"step_bytes": 32}, "bdefac"),
        ({"step_bytes": 8192}, "abcdef"),
    ],
)
@pytest.mark.parametrize("move", ["map", "spill"])
def test_outputs_have_the_order_of_a_registered_algorithm(
    move: str, options: dict[str, Any], order: str, tmp_path: Path
) -> None:
    write_shards(tmp_path / "in", SHARDS)
    spec = spec_of(algorithm={"kind": "size", **options}, output_shard_records=4)
    planned = plan_local(tmp_path, spec, move=move)
    report = run_local(tmp_path, spec, move=move)
    found = [key for _, data in sorted(files_of(tmp_path / "out").items()) for key in keys_in(data)]
    assert "".join(name[0] for name in found) == order
    assert planned.order.algorithm == report.order.algorithm
    assert report.order.algorithm.startswith("size: sorted by size")
    manifest = tmp_path / "out" / manifest_name(report.job_id)
    assert verified(manifest, tmp_path).problems == ()


@pytest.mark.usefixtures("by_size")
def test_what_is_out_of_its_order_is_found(tmp_path: Path) -> None:
    write_shards(tmp_path / "in", SHARDS)
    spec = spec_of(algorithm={"kind": "size"}, output_shard_records=6)
    report = run_local(tmp_path, spec)
    manifest = tmp_path / "out" / manifest_name(report.job_id)
    text = manifest.read_text()
    assert '"decreasing": false' in text
    manifest.write_text(text.replace('"decreasing": false', '"decreasing": true'))
    found = verified(manifest, tmp_path).problems
    assert {each.kind for each in found} == {"order"}


@pytest.mark.usefixtures("by_size")
def test_options_of_a_registered_algorithm_are_checked(tmp_path: Path) -> None:
    spec = parse_spec(spec_of(algorithm={"kind": "size", "step_bytes": 64})).spec
    assert spec.algorithm.build() == BySize(step_bytes=64)
    assert spec.canonical()["algorithm"]["step_bytes"] == 64
    assert parse_spec(spec.canonical()).spec == spec
    assert problems_of({"kind": "size", "step_bytes": 0}) == [
        SpecProblem(
            "algorithm.step_bytes", "must be at least 1, not 0", "1 compares sizes as they are"
        )
    ]
    assert problems_of({"kind": "size", "step_bytes": 48}) == [
        SpecProblem("algorithm.step_bytes", "48 is no power of two", "512 is one")
    ]
    assert problems_of({"kind": "md5", "step_bytes": 64}) == [
        SpecProblem("algorithm.step_bytes", "cannot be combined with md5", "it needs size")
    ]
    assert problems_of({"kind": "size", "natural": True}) == [
        SpecProblem("algorithm.natural", "cannot be combined with size", "it needs alphanumeric")
    ]
    assert parse_spec(spec_of(algorithm={"kind": "size", "seed": 1})).warnings == (
        '"algorithm.seed" has no effect: size is not random',
    )


@pytest.mark.usefixtures("by_size")
def test_the_schema_has_it_and_other_specs_do_not() -> None:
    known = schema()["$defs"]["Algorithm"]["properties"]
    assert known["kind"]["enum"] == [*ALGORITHMS]
    assert known["kind"]["description"].endswith("size: by the size of the payload.")
    assert known["step_bytes"]["description"] == "Of size: how fine sizes are compared."
    other = parse_spec(spec_of(algorithm={"kind": "md5"})).spec
    assert "step_bytes" not in other.canonical()["algorithm"]


def test_a_kind_that_no_package_registered_is_unknown() -> None:
    for kind, hint in (("size", ""), ("shufle", 'did you mean "shuffle"?')):
        said = f'must be {BUILT_IN}, not the text "{kind}"'
        assert problems_of({"kind": kind}) == [SpecProblem("algorithm.kind", said, hint)]


@pytest.mark.usefixtures("by_size")
def test_two_algorithms_cannot_have_one_kind() -> None:
    register(BySize)
    other = type("Other", (Alphanumeric,), {"kind": "size"})
    with raises(ValueError, "'size'", "dsort.algorithms"):
        register(other)
