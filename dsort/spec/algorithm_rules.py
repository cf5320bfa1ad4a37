"""Rules about the order of records, made from the registered algorithms: about their options, the
options of the job and those of each of several sort keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from dsort.errors import SpecProblem
from dsort.order.algorithms import ALGORITHMS
from dsort.order.base import Check, Option
from dsort.order.batches import Batches
from dsort.order.shuffle import Shuffle
from dsort.spec.algorithms import Algorithm, joined, known_options, owners_of
from dsort.spec.parts import SpecFields

__all__ = ["algorithm_rules"]

_Rule = tuple[tuple[str, ...], Callable[[SpecFields], Iterator[SpecProblem]]]


def algorithm_rules() -> Iterator[_Rule]:
    """(fields, problems) of each rule."""
    for kind, algorithm in ALGORITHMS.items():
        required = {name: each.required for name, each in algorithm.options().items()}
        needed = {name: hint for name, hint in required.items() if hint}
        if needed:
            yield _about([*needed], partial(_required, kind, needed))
        for check in algorithm.checks:
            yield _about(check.options, partial(_checked, kind, check))
    # The rule of an option that several algorithms have comes last.
    for name, option in sorted(known_options().items(), key=lambda it: len(owners_of(it[0])) > 1):
        if not option.no_effect:
            yield _about([name], partial(_misplaced, name, option))
    yield from _PLACEMENTS


def _placements_count_records(spec: SpecFields) -> Iterator[SpecProblem]:
    """Places are drawn from the numbers of records in an output, so no step in between may change
    these numbers."""
    algorithm = spec.algorithm
    for name in ("interleave", "batches"):
        if getattr(algorithm, name) is None or algorithm.kind != Shuffle.kind:
            continue
        if spec.has_key_map:
            hint = "outputs: [...] divides records by conditions, and can be combined with it"
            yield SpecProblem(f"algorithm.{name}", "cannot be combined with a key map", hint)
        if spec.join is not None:
            text = "cannot be combined with join: places are given before records meet"
            yield SpecProblem(f"algorithm.{name}", text, "order what is joined in another job")
        drops = spec.deduplicate is not None or spec.config.duplicate_keys == "drop"
        if drops and (spec.exact or spec.stratify):
            # Places are numbers among the records of an output, where duplicates are missing.
            text = "cannot be combined with exact or stratify where duplicates are left out"
            hint = "leave records out in a job before this one"
            yield SpecProblem(f"algorithm.{name}", text, hint)


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


_PLACEMENTS: Final[tuple[_Rule, ...]] = (
    (
        (
            *("algorithm", "ekm", "ekm_file", "join"),
            *("exact", "stratify", "deduplicate", "Config.duplicate_keys"),
        ),
        _placements_count_records,
    ),
    (
        (
            "algorithm",
            "outputs",
            "deduplicate",
            "output_shard_records",
            "Config.duplicate_keys",
        ),
        _batches_are_whole,
    ),
)

_Problems = Callable[[str, Algorithm], Iterator[SpecProblem]]


def _about(names: Sequence[str], problems: _Problems) -> _Rule:
    """The rule about the options ``names``, for each place where a spec has algorithms."""

    def each(spec: SpecFields) -> Iterator[SpecProblem]:
        yield from problems("algorithm", spec.algorithm)
        for number, key in enumerate(spec.algorithm.keys or ()):
            yield from problems(f"algorithm.keys[{number}]", key)

    fields = (f"algorithm.{name}" for name in names)
    return (("algorithm.kind", "algorithm.keys", *fields), each)


def _required(
    kind: str, hints: Mapping[str, str], place: str, algorithm: Algorithm
) -> Iterator[SpecProblem]:
    for name, hint in hints.items() if algorithm.kind == kind else ():
        if getattr(algorithm, name) is None:
            yield SpecProblem(f"{place}.{name}", f"is required for {kind}", hint)


def _checked(kind: str, check: Check, place: str, algorithm: Algorithm) -> Iterator[SpecProblem]:
    if algorithm.kind == kind:
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
