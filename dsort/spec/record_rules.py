"""Rules about records: steps, duplicates, key maps, the division among several outputs, joins, and
the order of records, also as in AIStore."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from dsort.containers.registry import (
    container_of,
    is_columnar,
)
from dsort.errors import SpecProblem
from dsort.naming.names import KEY_COLUMN
from dsort.option_fields import Check, Option, OptionError
from dsort.order.algorithms import ALGORITHMS, Shuffle
from dsort.order.base import Algorithm as OrderAlgorithm
from dsort.order.placement import Batches
from dsort.spec.algorithms import Algorithm, joined, known_options, owners_of
from dsort.spec.cases import Excludes
from dsort.spec.part import Rules, repeated, usable
from dsort.spec.parts import SpecFields
from dsort.spec.target import REST, carrier_extension
from dsort.transforms.fields import Fields

rule = Rules()


@rule
def _steps_support_rows(spec: SpecFields) -> Iterator[SpecProblem]:
    """Rows stay rows: a step that does not support rows, or only in part, is refused."""
    carrier = carrier_extension(spec)
    if not (is_columnar(carrier) and is_columnar(spec.input_extension)):
        return
    text = f"is not supported from tables to {carrier} shards yet"
    for number, step in enumerate(spec.steps):
        path = f"transform.steps[{number}]"
        if step.kind in MAKE_ROWS:
            continue  # cells are members during the step
        if not step.is_for_rows:
            hint = "use map or flat_map, or convert the shards to .tar first"
            yield SpecProblem(path, f"{step.kind} {text}", hint)
        elif step.refused_for_rows:
            hint = "use the step slice for numbers, {n} for {shard_n}, sizes of single columns"
            yield SpecProblem(path, f"{step.refused_for_rows} in a {step.kind} {text}", hint)
        if isinstance(step, Fields):
            yield from _key_columns_stay(spec, path, step)


def _key_columns_stay(spec: SpecFields, path: str, step: Fields) -> Iterator[SpecProblem]:
    """A step must not name the column with the keys."""
    named = {*step.drop, *step.rename, *step.rename.values()}
    for name in sorted(named & {spec.key_field or KEY_COLUMN, KEY_COLUMN}):
        text = f"{name} is the column of keys, which stays what it is"
        yield SpecProblem(f"{path}.fields", text, "rekey gives rows new keys")


_BEHIND: Final = "join in one job, and do the rest in a second job, which reads its result"
MAKE_ROWS = ("map", "flat_map")


@rule
def _numbers_are_known_before_payload_is_changed(spec: SpecFields) -> Iterator[SpecProblem]:
    behind = ""
    for number, step in enumerate(spec.steps):
        if step.needs == "payload":
            behind = step.kind
        elif behind and step.needs_positions:
            yield SpecProblem(
                f"transform.steps[{number}]",
                f"{step.kind} needs record numbers over all shards, unknown behind {behind}",
                f"put it before {behind}; {{shard_n}} counts in a shard",
            )


@rule
def _outputs_are_alone(spec: SpecFields) -> Iterator[SpecProblem]:
    for number, name in repeated(output.name for output in spec.outputs):
        yield SpecProblem(f"outputs[{number}].name", f'"{name}" is there twice')


@rule
def _records_are_dealt_out(spec: SpecFields) -> Iterator[SpecProblem]:
    by_fraction = any(output.fraction is not None for output in spec.outputs)
    for number, output in enumerate(spec.outputs):
        path = f"outputs[{number}]"
        if output.fraction is not None and output.when is not None:
            yield SpecProblem(path, "has a fraction and a condition", "choose one of them")
        elif output.fraction is None and output.when is None:
            hint = "fraction: 0.1, or when: 'size(\"jpg\") < 5000'"
            yield SpecProblem(path, "has neither a fraction nor a condition", hint)
        elif output.fraction is None and by_fraction:
            text = "has a condition, but another output has a fraction"
            yield SpecProblem(path, text, "all outputs have fractions, or all have conditions")
        if output.when == REST and number + 1 < len(spec.outputs):
            text = "takes all remaining records: none reach the outputs after it"
            yield SpecProblem(f"{path}.when", text, "put it last")
    fractions = [output.fraction or 0.0 for output in spec.outputs]
    total = math.fsum(fractions)
    if by_fraction and abs(total - 1) > 1e-9:
        hint = "the step sample leaves records out" if total < 1 else ""
        yield SpecProblem("outputs", f"the fractions add up to {total:.12g}, not to 1", hint)


@rule
def _expressions_are_right(spec: SpecFields) -> Iterator[SpecProblem]:
    texts = {f"outputs[{number}].when": each.when for number, each in enumerate(spec.outputs)}
    for path, text in {**texts, "split_by": spec.split_by}.items():
        if text in (None, REST, "key"):
            continue
        from dsort.expressions.expression import Expression  # most specs have none

        try:
            expression = Expression.of(text, wanted="" if path == "split_by" else "bool")
        except OptionError as error:
            yield SpecProblem(path, str(error), error.hint)
            continue
        are_rows = is_columnar(spec.input_extension) and is_columnar(carrier_extension(spec))
        if are_rows and expression.refused_for_rows:
            asked = expression.refused_for_rows
            text = f"asks for {asked}, which is not supported from tables to tables"
            yield SpecProblem(path, text)
        if spec.join is not None and spec.outputs and not expression.asks <= {"key"}:
            text = "uses more than the key, but the parts of a joined record share only the key"
            yield SpecProblem(path, text, _BEHIND)


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


_ORDERS: Final = (
    Excludes(
        ("join",),
        "an order that is decided before records meet",
        hint=f"use shuffle, alphanumeric, md5, content or none; or {_BEHIND}",
        text="{kind} cannot be combined with join: it orders records before they are joined",
        path="algorithm.kind",
    ),
    Excludes(
        ("keep_shards",),
        "an algorithm",
        hint="use none, or leave it out",
        text="{kind} cannot be combined with keep_shards: records stay in their shards",
        path="algorithm.kind",
    ),
    Excludes(
        ("like",),
        "an algorithm",
        hint="leave it out",
        text="{kind} cannot be combined with like: records have the order of the other result",
        path="algorithm.kind",
    ),
)


@rule
def _records_can_be_in_that_order(spec: SpecFields) -> Iterator[SpecProblem]:
    for row in _ORDERS:
        yield from row.problems(spec)


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
    for target in spec.targets:
        if target.records is not None and target.records % batches.records:
            text = f"{target.records:,} records are no whole batches of {batches.records:,}"
            near = max(target.records // batches.records, 1) * batches.records
            yield SpecProblem("output_shard_records", text, f"use a multiple, e.g. {near:,}")


def as_aistore_orders(spec: SpecFields, algorithm: Algorithm) -> Algorithm:
    """``algorithm``, in the variant of AIStore if ``spec`` asks for it."""
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
            text = "name cannot be combined with join: joined records are compared by keys only"
            yield SpecProblem(path, text, "leave it out")
        if not _have_members(spec):
            yield SpecProblem(path, "name is for .tar and .zip shards", "leave it out")
