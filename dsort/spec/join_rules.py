"""Rules about a join: the fields that it can be combined with, and the work that needs another job
before or after it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dsort.containers.registry import container_of
from dsort.errors import SpecProblem
from dsort.spec.checks import Rules
from dsort.spec.parts import SpecFields

__all__ = ["rule"]

rule = Rules()

_BEHIND: Final = "join in one job, and do that with its result in another"


@rule
def _a_join_has_inputs(spec: SpecFields) -> Iterator[SpecProblem]:
    if spec.join is not None and len(spec.inputs) < 2:
        hint = "inputs: [{name: images, input_bck: ...}, {name: labels, input_bck: ...}]"
        yield SpecProblem("join", "needs several inputs", hint)
    for number, each in enumerate(spec.inputs):
        if each.join is not None and spec.join is None:
            text = "says how a join differs, but there is none"
            yield SpecProblem(f"inputs[{number}].join", text, "join: {by: key} at the top level")


@rule
def _keys_say_what_is_joined(spec: SpecFields) -> Iterator[SpecProblem]:
    if spec.join is None:
        return
    from dsort.expressions.nodes import ExpressionError
    from dsort.transforms.rekey import KEY, STEM, join_expression

    paths = {f"inputs[{number}].join.by": each for number, each in enumerate(spec.inputs)}
    own = {path: each.join.by for path, each in paths.items() if each.join and each.join.by}
    for path, text in {"join.by": spec.join.by, **own}.items():
        if text in (KEY, STEM):
            continue
        try:
            join_expression(text)
        except ExpressionError as error:
            yield SpecProblem(path, str(error), error.hint or f"or {KEY}, or {STEM}")


@rule
def _records_have_keys(spec: SpecFields) -> Iterator[SpecProblem]:
    if spec.join is None:
        return
    from dsort.transforms.rekey import KEY, STEM

    for source, each in zip(spec.sources, spec.inputs, strict=False):
        by = (each.join.by if each.join is not None else None) or spec.join.by
        container = container_of(source.extension)
        if by not in (KEY, STEM) or spec.key_field or not container.numbers_records:
            continue
        yield SpecProblem(
            "join.by",
            f"{source.extension} records have no keys: they are numbered in their shard",
            'set key_field (as "/id"), or join by: json.id',
        )
        return


@rule
def _order_is_by_keys(spec: SpecFields) -> Iterator[SpecProblem]:
    algorithm = spec.algorithm.type
    if spec.join is not None and not (algorithm.joins or algorithm.joins_by_places):
        text = (
            f"{spec.algorithm.kind} cannot be combined with join: it is decided before records meet"
        )
        hint = f"shuffle, alphanumeric, md5, content and none do; or {_BEHIND}"
        yield SpecProblem("algorithm.kind", text, hint)


@rule
def _pieces_go_to_one_output(spec: SpecFields) -> Iterator[SpecProblem]:
    if spec.join is None or not spec.outputs:
        return
    from dsort.expressions.expression import Expression
    from dsort.expressions.nodes import ExpressionError

    texts = {f"outputs[{number}].when": each.when for number, each in enumerate(spec.outputs)}
    for path, text in {**texts, "split_by": spec.split_by}.items():
        try:
            asks = Expression.of(text, wanted="").asks if text else frozenset()
        except ExpressionError:
            continue  # another rule reports it
        if not asks <= {"key"}:
            problem = "asks for more than the key, which is all that the parts of a record share"
            yield SpecProblem(path, problem, _BEHIND)
