"""``compatibility: aistore``: the behaviour of AIStore with the same spec, where that is well
defined.

It changes the defaults of fields; fields that a spec sets are kept. AIStore reads and writes only
archives of members, so nothing changes for other containers.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsort.containers.registry import container_of
from dsort.errors import SpecProblem
from dsort.spec.algorithms import Algorithm
from dsort.spec.checks import Rules
from dsort.spec.parts import SpecFields

__all__ = ["as_aistore_orders", "rule"]

rule = Rules()


def as_aistore_orders(spec: SpecFields, algorithm: Algorithm) -> Algorithm:
    """``algorithm`` as AIStore would run it, if ``spec`` wants that."""
    if spec.compatibility != "aistore" or spec.join is not None or not _have_members(spec):
        return algorithm
    given = algorithm.model_fields_set
    if algorithm.kind in ("alphanumeric", "md5") and "compare" not in given:
        return algorithm.model_copy(update={"compare": "name"})
    is_text = algorithm.kind == "content" and algorithm.content_key_type == "string"
    if is_text and "strip" not in given:
        return algorithm.model_copy(update={"strip": False})
    return algorithm


def _have_members(spec: SpecFields) -> bool:
    extensions = {spec.input_extension, spec.output_extension}
    extensions |= {each.extension for each in spec.sources}
    extensions |= {each.extension for each in spec.targets}
    return all(container_of(extension).is_of_members for extension in extensions)


@rule
def _names_are_compared_where_there_are_some(spec: SpecFields) -> Iterator[SpecProblem]:
    for number, algorithm in enumerate((spec.algorithm, *(spec.algorithm.keys or ()))):
        if algorithm.compare != "name":
            continue
        path = "algorithm.compare" if not number else f"algorithm.keys[{number - 1}].compare"
        if spec.join is not None:
            text = "name cannot be combined with join, which knows keys only"
            yield SpecProblem(path, text, "leave it out")
        if not _have_members(spec):
            yield SpecProblem(path, "name is for .tar and .zip shards", "leave it out")
