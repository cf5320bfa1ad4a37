"""The rule by which records of several inputs become one."""

from __future__ import annotations

from msgspec import Struct


class JoinRule(Struct, frozen=True):
    """How records are joined. ``inputs``: their names, in order; ``nonmatch``: for each input, the
    reaction to a record that has no piece in it: ``error``, ``skip`` (the record is left out) or
    ``none`` (the record is joined without it). ``drops_later``: if several records of one input
    have one key, the first is used, and that is no error. ``conflict``: whose member stays if
    several inputs have a member with the same extension: ``first``, ``last``, or ``error``.
    ``is_ordered_first``: the values that order records are known only once they are joined."""

    inputs: tuple[str, ...]
    nonmatch: tuple[str, ...]
    drops_later: bool = False
    conflict: str = "error"
    is_ordered_first: bool = False

    @property
    def is_settled_first(self) -> bool:
        """Whether a pass before payload moves finds the records and members to leave out."""
        return self.conflict != "error" or self.is_ordered_first

    def settled(self) -> JoinRule:
        """The rule for the records that are left after that pass."""
        return JoinRule(self.inputs, ("none",) * len(self.inputs))
