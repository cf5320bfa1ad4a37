"""The contract of a step: what a job does to records after they are read and before it orders them.

To add a step, write a module with a child of :class:`Step` and register it (``steps.register``).
A step gets the records of one input shard at a time, as columns, and gives back those that stay. It
must be a function of its options and of these records: the same job gives the same bytes, whatever
the workers, and a task that a dead worker has begun is done again by another.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from dsort.naming.locations import FileLocation

if TYPE_CHECKING:  # steps are known with every spec, and need not load numpy for that
    from dsort.order.table import RecordTable


__all__ = ["OPTIONS_CONFIG", "Needs", "ReadText", "Step", "leave_out_descriptions"]

OPTIONS_CONFIG: dict[str, Any] = {"extra": "forbid", "use_attribute_docstrings": True}
"""Pydantic's, of the options of a step: the text below a field is its description."""

Needs = Literal["index", "member", "payload"]

ReadText = Callable[[FileLocation], str]
"""What gives the text at a path or URL, bytes that are no UTF-8 as lone surrogates. ``InputError``
and its children say why it cannot be had."""


def leave_out_descriptions() -> None:
    """Have no options described that are looked at from here on. To describe them, pydantic reads
    the sources of all steps again: 160 million instructions, for jobs that print no schema."""
    OPTIONS_CONFIG["use_attribute_docstrings"] = False


class Step(ABC):
    """One step of a transform. Instances are small, immutable and can be pickled: workers get one.

    ``options_type``: what a spec gives for the step, as a type that pydantic can check: a number, a
    list, a model. Defaults belong to it.
    """

    __slots__ = ()

    kind: ClassVar[str]
    """What specs call it."""
    summary: ClassVar[str]
    """What it does, for the description of specs: "Keep the records whose keys are listed."."""
    options_type: ClassVar[Any]
    needs: ClassVar[Needs] = "index"
    """What it looks at. ``index``: keys, names, sizes, the place in the shard, which cost next to
    nothing. ``member``: the content of one small member of each record as well. ``payload``: all
    of it (``transforms.payload``)."""
    is_for_rows: ClassVar[bool] = False
    """Whether it can be done on rows that stay rows, whose cells are members: it leaves some out,
    or is known to those who change columns (``workers.row_changes``)."""
    is_safe_from_network: ClassVar[bool] = True
    """Whether a spec that came over the network may have it: it runs no code of the spec's author,
    and opens nothing."""

    @classmethod
    @abstractmethod
    def of(cls, options: Any) -> Self:
        """The step with these options, a value of ``options_type``. ``OptionError``."""

    def loaded(self, read: ReadText) -> Self:
        """The same step, with all that its options name read. It is asked for that once, before
        the job begins, and its ``digest`` covers what was read."""
        return self

    @property
    def refused_for_rows(self) -> str:
        """What of its options cannot be done on rows that stay rows; "" if all of them can."""
        return ""

    @property
    def extensions(self) -> tuple[str, ...]:
        """The members that it looks at, without their dots: of rows, the columns."""
        return ()

    @property
    def extensions_read(self) -> tuple[str, ...]:
        """Those of them whose content, or size, it looks at."""
        return self.extensions

    @property
    def listed(self) -> tuple[str, ...]:
        """What its options list that is to fit something, in words. ``apply`` reports each that
        fits (``RecordTable.fits``); a job in which one fits nothing has a warning."""
        return ()

    @property
    def needs_positions(self) -> bool:
        """Whether it looks at ``RecordTable.first``. Then what comes to it is counted in all shards
        before any is extracted, which takes a reading of the inputs of its own."""
        return False

    def count_left(self, first: int, count: int) -> int | None:
        """How many it leaves of ``count`` records, of which the first has the number ``first``;
        None where that depends on the records. Spares a reading where another step needs it."""
        return None

    def extension_left(self, extension: str) -> str | None:
        """What it makes of the extension (without its dot) of a member that it leaves; None if it
        leaves none such. So it is known which columns rows have that are made of members."""
        return extension

    @abstractmethod
    def apply(self, records: RecordTable) -> RecordTable:
        """What the step leaves of the records of one shard, in their order: see the methods of
        ``RecordTable`` that return one. ``InputError`` and its children name shard and record."""

    @property
    @abstractmethod
    def options(self) -> Any:
        """The options as JSON-able values, defaults written out."""

    def digest(self) -> str:
        """What tells two steps apart whose results may differ (hexadecimal SHA-256). A step that
        runs code of its own adds that code."""
        text = json.dumps([self.kind, self.options], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()
