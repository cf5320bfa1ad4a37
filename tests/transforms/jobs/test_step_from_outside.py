"""A step that is not in the package: registered, used in a spec, run, planned, verified."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from dsort.errors import ForbiddenError, SpecError, SpecProblem
from dsort.option_fields import Check, OptionError, option
from dsort.options import RunOptions
from dsort.service.config import ServiceConfig
from dsort.service.jobs.submit import Submitter
from dsort.spec.load import parse_spec
from dsort.spec.model import schema
from dsort.transforms.base import Step
from dsort.transforms.steps import STEPS, register
from tests.support.datasets import Shard, files_of, write_shards
from tests.support.engine import keys_in, plan_local, record, run_local, spec_of, verify_local
from tests.support.every_nth import EveryNth
from tests.support.internals import steps_of
from tests.support.refusals import raises

if TYPE_CHECKING:
    from dsort.service.jobs.store import JobStore


def _even(step: int) -> int:
    if step % 2:
        raise OptionError(f"has a step of {step}, which is odd", "2")
    return step


SHARDS = {
    f"in-{at}.tar": Shard([m for key in keys for m in record(key, "jpg", payload=b"x" * 10)])
    for at, keys in enumerate(["abcde", "fgh"])
}


@pytest.fixture(autouse=True)
def every_nth() -> Iterator[None]:
    register(EveryNth)
    yield
    del STEPS[EveryNth.kind]


def problems_of(transform: Any) -> list[SpecProblem]:
    with pytest.raises(SpecError) as refused:
        parse_spec(spec_of(transform=transform))
    return list(refused.value.problems)


@pytest.mark.sample(keep=3)
@pytest.mark.parametrize(
    ("steps", "kept"),
    [
        ([{"every_nth": 2}], "acefh"),
        ([{"every_nth": 2}, {"every_nth": 2}], "aef"),
        ([{"every_nth": 100}], "af"),
    ],
)
@pytest.mark.parametrize("move", ["map", "spill"])
def test_outputs_have_the_records_that_a_registered_step_keeps(
    move: str, steps: list[dict[str, int]], kept: str, tmp_path: Path
) -> None:
    write_shards(tmp_path / "in", SHARDS)
    spec = spec_of(transform={"steps": steps}, output_shard_records=2)
    planned = plan_local(tmp_path, spec, move=move)
    report = run_local(tmp_path, spec, move=move)
    found = [key for _, data in sorted(files_of(tmp_path / "out").items()) for key in keys_in(data)]
    assert "".join(name[0] for name in found) == kept
    assert planned.records == report.records == len(kept)
    assert verify_local(tmp_path, report).problems == ()


def test_a_spec_that_uses_it_is_read_back_as_it_was() -> None:
    spec = parse_spec(spec_of(transform={"steps": [{"every_nth": 3}]})).spec
    assert spec.canonical()["transform"] == {"steps": [{"every_nth": 3}]}
    assert parse_spec(spec.canonical()).spec == spec
    assert steps_of(spec)[0].digest() != EveryNth(n=2).digest()


@pytest.mark.parametrize(
    ("transform", "field", "message"),
    [
        ({"steps": [{"every_nth": 0}]}, "transform.steps[0].every_nth", "at least 1"),
        ({"steps": [{"every_mth": 2}]}, "transform.steps[0].every_mth", "every_nth"),
        ({"steps": [{}]}, "transform.steps[0]", "needs one kind of step, but has none"),
        ({"steps": [{"filter": None}]}, "transform.steps[0].filter", "is empty"),
        ({"steps": []}, "transform.steps", "must not be empty"),
        ({}, "transform.steps", "is required"),
    ],
)
def test_a_wrong_step_is_refused_by_name(transform: Any, field: str, message: str) -> None:
    (problem,) = problems_of(transform)
    assert problem.path == field
    assert message in f"{problem.message} {problem.hint}"


def test_a_service_takes_no_step_that_is_not_safe_from_the_network(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spec = spec_of(transform={"steps": [{"every_nth": 2}]}, input_bck="a", output_bck="b")
    config = ServiceConfig(
        run=RunOptions(root=tmp_path),
        state_dir=tmp_path / "state",
        database_url="",
        replica="one",
    )
    # To check a spec needs no store.
    submitter = Submitter(config, cast("JobStore", None))
    assert steps_of(submitter.check(spec).spec)
    monkeypatch.setattr(EveryNth, "is_safe_from_network", False)
    with raises(ForbiddenError, "transform.steps", "every_nth"):
        submitter.check(spec)


def _below_step(options: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    if options["first"] >= options["step"]:
        yield "first", "is not below step", "0 keeps the first record"


class _FromFirst(Step, frozen=True):
    """Has several options, as an algorithm may have: with a check each, and a rule between them."""

    kind = "from_first"
    summary = "Keep a record, and every so many after it."
    checks = (Check(("first", "step"), _below_step),)

    first: int = option(int, "The number of the first record.", default=0)
    step: int = option(int, "The distance of two records.", default=2, check=_even)
    names: tuple[str, ...] | None = option(list[str], "Of nothing.", is_sequence=True)


@pytest.fixture
def from_first() -> Iterator[None]:
    register(_FromFirst)
    yield
    del STEPS[_FromFirst.kind]


@pytest.mark.parametrize(
    ("options", "field", "message"),
    [
        ({"first": 4, "step": 2}, "from_first.first", "is not below step"),
        ({"step": 3}, "from_first", "is odd"),
        ({"first": "x"}, "from_first.first", '"x"'),
        ({"firts": 1}, "from_first.firts", 'did you mean "first"?'),
    ],
)
def test_its_options_are_checked_by_what_it_states(
    from_first: None, options: Any, field: str, message: str
) -> None:
    (problem,) = problems_of({"steps": [{"from_first": options}]})
    assert problem.path == f"transform.steps[0].{field}"
    assert message in f"{problem.message} {problem.hint}"


def test_its_canonical_form_and_its_schema_have_its_options(from_first: None) -> None:
    transform = {"steps": [{"from_first": {"names": ["a"]}}]}
    canonical = parse_spec(spec_of(transform=transform)).spec.canonical()["transform"]
    assert canonical == {"steps": [{"from_first": {"first": 0, "step": 2, "names": ["a"]}}]}
    found = schema()["$defs"]["FromFirstOptions"]["properties"]
    assert found["first"] == {"description": "The number of the first record.", "type": "integer"}


def test_another_step_of_its_kind_is_refused() -> None:
    class Other(EveryNth):
        pass

    with raises(ValueError, "'every_nth'", "dsort.steps"):
        register(Other)
