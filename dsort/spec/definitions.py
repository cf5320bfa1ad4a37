"""Definitions of transforms as people write them, to be stored under a name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from dsort.errors import SpecError, SpecProblem
from dsort.spec.load import parse_spec
from dsort.spec.transform import Transform

__all__ = ["read_transform"]


def read_transform(fields: Mapping[str, Any]) -> tuple[dict[str, Any], Transform]:
    """A definition in its stored form, with every default, and its transform. ``SpecError`` with
    all of its problems."""
    for name in ("use", "digest", "allowed_by"):
        if name in fields:
            raise SpecError([SpecProblem(name, "belongs into specs", "a definition has steps")])
    tried = {"input_bck": "in", "output_bck": "out", "keep_shards": True, "transform": {**fields}}
    try:
        transform = parse_spec(tried).spec.transform
    except SpecError as error:
        problems = [
            replace(each, path=each.path.removeprefix("transform").lstrip("."))
            for each in error.problems
        ]
        raise SpecError(problems) from None
    assert transform is not None
    return transform.canonical(), transform
