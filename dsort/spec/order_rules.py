"""Rules about the order of records and about joins, and the order that AIStore has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dsort.containers.registry import container_of
from dsort.errors import SpecProblem
from dsort.option_fields import Check, Option
from dsort.order.algorithms import ALGORITHMS
from dsort.order.base import Algorithm as OrderAlgorithm
from dsort.order.placement import Batches
from dsort.order.shuffle import Shuffle
from dsort.spec.algorithms import Algorithm, joined, known_options, owners_of
from dsort.spec.part import Rules, usable
from dsort.spec.parts import SpecFields

__all__ = ["as_aistore_orders", "rule"]

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


@rule
def _algorithms_have_their_options(spec: SpecFields) -> Iterator[SpecProblem]:
    algorithm = spec.algorithm
    places = {"algorithm": algorithm}
    places |= {f"algorithm.keys[{at}]": each for at, each in enumerate(algorithm.keys or ())}
    for kind, known in ALGORITHMS.items():
        for place, each in places.items():
            if each.kind == kind:
                yield from _required(known, place, each)
                for check in known.checks:
                    yield from usable(_checked(check, place, each))
    # The rule of an option that several algorithms have comes last.
    for name, option in sorted(known_options().items(), key=lambda it: len(owners_of(it[0])) > 1):
        for place, each in places.items() if not option.no_effect else ():
            yield from usable(_misplaced(name, option, place, each))


def _required(
    known: type[OrderAlgorithm], place: str, algorithm: Algorithm
) -> Iterator[SpecProblem]:
    for name, option in known.stated().items():
        if option.required and getattr(algorithm, name) is None:
            yield SpecProblem(f"{place}.{name}", f"is required for {known.kind}", option.required)


def _checked(check: Check, place: str, algorithm: Algorithm) -> Iterator[SpecProblem]:
    values = {name: getattr(algorithm, name, None) for name in check.options}
    for name, message, hint in check.problems(values):
        yield SpecProblem(f"{place}.{name}", message, hint)


def _misplaced(
    name: str, option: Option, place: str, algorithm: Algorithm
) -> Iterator[SpecProblem]:
    owners, kind = owners_of(name), algorithm.kind
    if kind not in owners and getattr(algorithm, name, None) not in (None, option.default):
        message, hint = option.misplaced
        message = message or f"cannot be combined with {kind}"
        yield SpecProblem(f"{place}.{name}", message, hint or f"it needs {joined(owners)}")


@rule
def _batches_are_whole(spec: SpecFields) -> Iterator[SpecProblem]:
    batches = spec.algorithm.build().placement if spec.algorithm.kind == Shuffle.kind else None
    if not isinstance(batches, Batches):
        return
    text = "leaves gaps in windows, so that batches of fewer records would lie between others"
    hint = "leave records out in a job before this one"
    if spec.deduplicate is not None:
        yield SpecProblem("deduplicate", f"with algorithm.batches {text}", hint)
    if spec.config.duplicate_keys == "drop":
        yield SpecProblem("duplicate_keys", f"drop with algorithm.batches {text}", hint)
    for target in spec.targets:
        if target.records is not None and target.records % batches.records:
            text = f"{target.records:,} records are no whole batches of {batches.records:,}"
            near = max(target.records // batches.records, 1) * batches.records
            yield SpecProblem("output_shard_records", text, f"a multiple, as {near:,}")


@rule
def _kept_shards_are_in_order(spec: SpecFields) -> Iterator[SpecProblem]:
    kind = spec.algorithm.kind
    if spec.keep_shards and kind != "none":
        text = f"{kind} cannot be combined with keep_shards: records stay in their shards"
        yield SpecProblem("algorithm.kind", text, "use none, or leave it out")


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
