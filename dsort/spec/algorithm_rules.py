"""Rules about the order of records, made from the registered algorithms: about their options, the
options of the job and those of each of several sort keys."""

from __future__ import annotations

from collections.abc import Iterator

from dsort.errors import SpecProblem
from dsort.order.algorithms import ALGORITHMS
from dsort.order.base import Algorithm as OrderAlgorithm
from dsort.order.base import Check, Option
from dsort.order.batches import Batches
from dsort.order.shuffle import Shuffle
from dsort.spec.algorithms import Algorithm, joined, known_options, owners_of
from dsort.spec.checks import Rules, usable
from dsort.spec.parts import SpecFields

__all__ = ["rule"]

rule = Rules()


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
    for name, option in known.options().items():
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
