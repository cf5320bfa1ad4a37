"""How records of several inputs become one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JoinRule:
    """How records are joined. ``inputs``: their names, in order; ``nonmatch``: what becomes of a
    record that has no piece in each of them: ``error``, ``skip`` (it is left out) or ``none`` (it
    is joined without). ``drops_later``: of several records of one input with one key the first
    counts, and that is no error. ``conflict``: whose member stays where several inputs have one of
    one extension: ``first``, ``last``, or ``error``. ``is_ordered_first``: what orders records is
    known once they are joined."""

    inputs: tuple[str, ...]
    nonmatch: tuple[str, ...]
    drops_later: bool = False
    conflict: str = "error"
    is_ordered_first: bool = False

    @property
    def is_settled_first(self) -> bool:
        """Whether what is left out is found by a pass before payload moves."""
        return self.conflict != "error" or self.is_ordered_first

    def settled(self) -> JoinRule:
        """The rule for what is left once that is done."""
        return JoinRule(self.inputs, ("none",) * len(self.inputs))
