"""A small valid spec, and the problems of variations of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from dsort.errors import SpecError, SpecProblem
from dsort.spec.load import parse_spec
from dsort.spec.model import JobSpec

SMALL: Mapping[str, Any] = {
    "input_bck": "samples",
    "output_format": "shard-%d",
    "output_shard_size": "1MB",
}
"""Only the fields that a spec needs."""

BLOG_POST: Mapping[str, Any] = {
    "extension": ".tar",
    "bck": {"name": "images"},
    "input_format": "samples-{00..18}",
    "output_format": "shuffled-shard-%d",
    "output_shard_size": "100MB",
    "description": "Create new shuffled shards",
    "algorithm": {"kind": "shuffle"},
}
"""The spec of AIStore's blog post, word for word."""

CONTENT: Mapping[str, Any] = {"kind": "content", "extension": ".cls", "content_key_type": "int"}


def small(**fields: Any) -> dict[str, Any]:
    """The small spec with these fields; the value ``...`` removes a field."""
    return {name: value for name, value in {**SMALL, **fields}.items() if value is not ...}


def spec_of(**fields: Any) -> JobSpec:
    """The small spec with these fields, which cause no warning."""
    loaded = parse_spec(small(**fields))
    assert loaded.warnings == ()
    return loaded.spec


def problems_of(mapping: Mapping[str, Any]) -> dict[str, SpecProblem]:
    """The problems of a spec by the path of the field (one problem a path)."""
    with pytest.raises(SpecError) as error:
        parse_spec(mapping)
    problems = error.value.problems
    by_path = {problem.path: problem for problem in problems}
    assert len(by_path) == len(problems), problems
    return by_path


def problem_of(**fields: Any) -> SpecProblem:
    """The only problem of the small spec with these fields."""
    (problem,) = problems_of(small(**fields)).values()
    return problem
