"""Rules about specs whose job amends a result."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dsort.containers.base import ContainerOptions
from dsort.containers.registry import container_of
from dsort.errors import SpecProblem
from dsort.spec.checks import Rules
from dsort.spec.parts import SpecFields

__all__ = ["rule"]

rule = Rules()

_HINT: Final = "`dsort remove` makes such a spec"


@rule
def _only_keys_are_removed(spec: SpecFields) -> Iterator[SpecProblem]:
    if spec.amend is None or spec.amend.by != "remove":
        if spec.amend is not None and spec.overwrite:
            text = "cannot be combined with amend: the shards that are there stay"
            yield SpecProblem("overwrite", text)
        return
    steps = [] if spec.transform is None else [step.kind for step in spec.transform.build()]
    is_right = (
        spec.keep_shards
        and steps == ["drop_keys"]
        and spec.algorithm.kind == "none"
        and not spec.inputs
        and spec.require is None
        and spec.deduplicate is None
        and spec.input_bck == spec.output_bck
        and spec.input_extension == spec.output_extension
        and spec.overwrite
    )
    if not is_right:
        text = "remove is for shards that are written again in their place, without some keys"
        yield SpecProblem("amend.by", text, _HINT)
    elif _numbers_records(spec):
        text = f"records of {spec.output_extension} shards are but numbered: no key stays the same"
        yield SpecProblem("amend.by", text, "filter them in a job of its own")


def _numbers_records(spec: SpecFields) -> bool:
    options = ContainerOptions(key_field=spec.key_field)
    return container_of(spec.output_extension).with_options(options).numbers_records
