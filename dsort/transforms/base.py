"""The contract of a step: what a job does to records after they are read and before it orders them.

A step receives the records of one input shard at a time, as columns, and returns those that stay.
The result depends only on its options and these records. So a worker that repeats the task of a
dead worker makes the same bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from msgspec import Struct
from msgspec.structs import replace

from dsort.naming.patterns import FileLocation
from dsort.option_fields import OptionError, OptionGroup

if TYPE_CHECKING:
    from dsort.data.record_table import RecordTable

Needs = Literal["index", "member", "payload"]

ReadText = Callable[[FileLocation], str]
"""Returns the text at a path or URL; bytes that are not UTF-8 become lone surrogates. Raises
``InputError`` or a subclass if the text cannot be read."""


class Step(OptionGroup, frozen=True):
    """One step of a transform. Instances are small, immutable and picklable, because workers
    receive them.

    The fields that are made with ``option`` are its options. Other fields, which have defaults, are
    for loaded files.
    """

    kind: ClassVar[str]
    """Its name in specs."""
    summary: ClassVar[str]
    """What it does, for the description of specs: "Keep the records whose keys are listed."."""
    bare: ClassVar[str] = ""
    """The one option whose value specs give without its name (``slice: "0:10"``); "": its options
    are an object."""
    options_summary: ClassVar[str] = ""
    """The description of that object in the schema of specs; "": a sentence that fits most
    steps."""
    needs: ClassVar[Needs] = "index"
    """What it reads. ``index``: keys, names, sizes, the place in the shard, which cost next to
    nothing. ``member``: the content of one small member of each record as well. ``payload``: all
    content (``transforms.payload``)."""
    is_for_rows: ClassVar[bool] = False
    """Whether it works on rows that stay rows, whose cells are members: either it only leaves out
    rows, or ``workers.table_rows`` handles its changes of columns."""
    is_safe_from_network: ClassVar[bool] = True
    """Whether a spec that came over the network may have it: it runs no code of the spec's author,
    and opens no files or connections."""

    @classmethod
    def of(cls, options: Any) -> Self:
        """The step with the ``options`` of a spec, whose values already have the right types.
        ``OptionError`` if they are invalid."""
        made = cls(**cls.checked({cls.bare: options} if cls.bare else options))
        for check in cls.checks:
            values = {name: getattr(made, name) for name in check.options}
            for name, message, hint in check.problems(values):
                raise OptionError(message, hint, option=name)
        return made

    def loaded(self, read: ReadText) -> Self:
        """The same step, with the content of all files that its options name. Called once, before
        the job begins; the ``digest`` of the returned step covers that content."""
        return self

    @property
    def refused_for_rows(self) -> str:
        """The part of its options that rows of tables do not support; "" if they support all."""
        return ""

    @property
    def members_used(self) -> tuple[str, ...]:
        """The extensions, without dots, of the members that it uses; for rows, the columns."""
        return ()

    @property
    def members_read(self) -> tuple[str, ...]:
        """The extensions in ``members_used`` of members whose content or size it reads."""
        return self.members_used

    @property
    def listed(self) -> tuple[str, ...]:
        """The entries of its options that should match something, in words. ``apply`` reports each
        entry that matches (``RecordTable.fits``); a job in which an entry matches nothing has a
        warning."""
        return ()

    @property
    def needs_positions(self) -> bool:
        """Whether the step reads ``RecordTable.first``. If so, one more pass over the inputs counts
        the records that reach it, before any shard is extracted."""
        return False

    def count_left(self, first: int, count: int) -> int | None:
        """How many of ``count`` records stay; the first has the number ``first``. None if that
        depends on the records. The number saves a pass over the inputs if a later step needs
        positions."""
        return None

    def extension_left(self, extension: str) -> str | None:
        """The extension after the step for members with ``extension``, both without dots; None if
        the step drops these members. Determines the columns of rows that are made of members."""
        return extension

    def apply(self, records: RecordTable) -> RecordTable:
        """The records of one shard that stay, in their order: see the methods of ``RecordTable``
        that return a ``RecordTable``. Raises ``InputError`` or a subclass that names shard and
        record."""
        raise NotImplementedError

    @property
    def options(self) -> Any:
        """The options in their canonical form, in JSON types, defaults included."""
        return getattr(self, self.bare) if self.bare else self.written()

    def digest(self) -> str:
        """A hash (hexadecimal SHA-256). Steps whose results may differ have different hashes. For a
        step that runs code of the user, it also covers that code."""
        text = json.dumps([self.kind, self.options], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


class Applied(Struct, frozen=True):
    """The result of steps on one shard: ``records`` are the records that stay. ``left_out``: how
    many records each kind of step left out; ``dropped``: the same for each step, by its words
    (``step_words``); ``counts``: how many records reached each step that needs positions."""

    records: RecordTable
    left_out: Mapping[str, int]
    counts: tuple[int, ...]
    dropped: Mapping[str, int]


def step_words(number: int, step: Step) -> str:
    """A step of a job in words, with its place among all steps."""
    return f"step {number + 1} {step.kind}"


def apply_steps(steps: Sequence[Step], records: RecordTable, firsts: Sequence[int]) -> Applied:
    """Apply all ``steps`` to the records of one shard. ``firsts``: for each step that needs
    positions, the number of the first record that reaches it. Stops at the first such step without
    a number."""
    left_out: dict[str, int] = {}
    counts: list[int] = []
    dropped: dict[str, int] = {}
    for number, step in enumerate(steps):
        before = len(records)
        if step.needs_positions:
            counts.append(before)
            if len(firsts) < len(counts):
                break
            records = replace(records, first=firsts[len(counts) - 1])
        records = step.apply(records)
        if len(records) < before:
            left_out[step.kind] = left_out.get(step.kind, 0) + before - len(records)
            dropped[step_words(number, step)] = before - len(records)
    return Applied(records, left_out, tuple(counts), dropped)


def readings_needed(steps: Sequence[Step]) -> int:
    """How many passes over the inputs are needed to count the records that reach steps with
    positions."""
    needed, known = 0, False
    for step in steps:
        if step.needs_positions and not known:
            needed, known = needed + 1, True
        known = known and step.count_left(0, 0) is not None
    return needed


class InputPositions:
    """For each of ``steps`` that needs positions and was counted: how many records of each shard
    reach it, and the number of the first one."""

    def __init__(self, steps: Sequence[Step] = ()) -> None:
        self._steps = steps
        self._asking = [at for at, step in enumerate(steps) if step.needs_positions]
        self._counts: list[Sequence[int]] = []
        self._firsts: list[Sequence[int]] = []

    def __bool__(self) -> bool:
        return bool(self._asking)

    @property
    def is_complete(self) -> bool:
        """Whether all steps that need positions have their counts."""
        return len(self._counts) == len(self._asking)

    def add(self, counts: Sequence[int]) -> None:
        """Add the counts of the next step that needs positions: the number of records of each shard
        that reach it. If counts of later steps follow from these, they are added, too."""
        for step in self._steps[self._asking[len(self._counts)] :]:
            firsts: Sequence[int] = [0] * len(counts)
            if step.needs_positions:
                firsts = self._note(counts)
            pairs = zip(firsts, counts, strict=True)
            left = [step.count_left(first, count) for first, count in pairs]
            known = [count for count in left if count is not None]
            if len(known) < len(left) or step.count_left(0, 0) is None:
                return
            counts = known

    def firsts(self, shard: int) -> tuple[int, ...]:
        """For each step that needs positions and was counted: the number of the first record of a
        shard that reaches it."""
        return tuple(each[shard] for each in self._firsts)

    def counts(self, shard: int) -> tuple[int, ...]:
        """For each step that needs positions and was counted: how many records of a shard reach
        it."""
        return tuple(each[shard] for each in self._counts)

    def rows(self) -> list[list[int]]:
        """The counts of each step by shard, as :meth:`of` takes them."""
        return [list(each) for each in self._counts]

    @classmethod
    def of(cls, steps: Sequence[Step], rows: Sequence[Sequence[int]]) -> InputPositions:
        """Made from the result of :meth:`rows`. ``ValueError`` if it does not fit these steps."""
        found = cls(steps)
        if len(rows) != len(found._asking):
            raise ValueError("there are other steps")
        for counts in rows:
            found._note(counts)
        return found

    def _note(self, counts: Sequence[int]) -> Sequence[int]:
        """Note the counts of a step; return the number of the first record of each shard."""
        self._counts.append(counts)
        self._firsts.append([0, *accumulate(counts)][:-1])
        return self._firsts[-1]
