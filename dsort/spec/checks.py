"""The registration of rules about specs, and how they pass over fields that are wrong already."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from dsort.errors import SpecProblem
from dsort.spec.algorithms import UnusableError
from dsort.spec.parts import SpecFields

__all__ = ["Rules", "usable"]

Rule = Callable[[SpecFields], Iterator[SpecProblem]]


def usable(problems: Iterable[SpecProblem]) -> Iterator[SpecProblem]:
    """``problems``, until a field is read that is wrong already: so each mistake is reported
    once."""
    try:
        yield from problems
    except UnusableError:
        return


class Rules(list[Rule]):
    """The rules of a module, in order: ``rule = Rules()``, and then ``@rule`` at each function."""

    def __call__(self, problems: Rule) -> Rule:
        self.append(problems)
        return problems
