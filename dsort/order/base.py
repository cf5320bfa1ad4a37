"""The seam for algorithms: what each says of itself. The ones that there are: ``algorithms``.

An algorithm is a frozen dataclass in a file of its own. Its fields are its options by the names
that specs have for them, each made with :func:`option`; ``dsort.spec`` makes a pydantic model of
the options of all algorithms. Workers are given the dataclass itself, so that they never load
pydantic. And a spec is read without NumPy: algorithms import it where they use it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Protocol

if TYPE_CHECKING:
    from dsort.data.columns import Int64s, UInt64s
    from dsort.data.index import SortKeys
    from dsort.order.placement import Placement
    from dsort.order.table import RecordTable


class OptionError(ValueError):
    """What is wrong with the value of one option, with a ``hint``. ``names_value``: what the value
    is follows the message ("must be text", "not the number 5")."""

    def __init__(self, message: str, hint: str = "", *, names_value: bool = False) -> None:
        super().__init__(message)
        self.hint = hint
        self.names_value = names_value


@dataclass(frozen=True, slots=True)
class Option:
    """One option as a spec has it.

    ``type`` and ``default``: of the field of the spec; a default of None says that nothing was
    given. ``check`` returns the value to take, or raises ``OptionError``; ``before``: it gets the
    value as it is written, whatever its type. ``required``: the hint of an option that its
    algorithm cannot do without. ``misplaced``: message and hint where another algorithm is given
    it; empty: a sentence that fits most. ``no_effect``: instead, it only has no effect there, and
    this is why ("{kind}" is the algorithm). ``is_sequence``: a spec has a list.
    """

    type: Any
    description: str
    default: Any = None
    examples: tuple[Any, ...] = ()
    check: Callable[[Any], Any] | None = None
    before: bool = False
    json_schema: Mapping[str, Any] | None = None
    required: str = ""
    misplaced: tuple[str, str] = ("", "")
    no_effect: str = ""
    is_sequence: bool = False


def option(type: Any, description: str, *, own_default: Any = MISSING, **more: Any) -> Any:
    """A field of an algorithm that is an :class:`Option`. ``own_default``: what the algorithm takes
    where the spec gives none, if that is not the option's default."""
    made = Option(type, description, **more)
    if made.required:
        return field(metadata={"option": made})
    default = made.default if own_default is MISSING else own_default
    return field(default=default, metadata={"option": made})


def decreasing_option() -> Any:
    """The option ``decreasing``, which several algorithms have. Specs add for which it is."""
    return option(bool, "Largest first.", default=False)


def compare_option() -> Any:
    """The option ``compare``, of algorithms that are about names."""
    return option(
        Literal["key", "name"] | None,
        "Of alphanumeric and md5: key (the default) is the record key; name the whole name of a "
        "record's first member, which is what AIStore compares: a-1.jpg comes before a.jpg. By "
        "name, md5 is the order of names, as it is in AIStore. For .tar and .zip shards.",
    )


_SEED_SCHEMA: Final = {"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]}


def seed_option() -> Any:
    """The option ``seed`` of what takes one."""
    return option(
        str | None,
        "Of a shuffle: any whole number or text; 42 and '42' are the same seed. Absent: one is "
        "drawn, and recorded in the manifest.",
        check=_seed,
        before=True,
        json_schema=_SEED_SCHEMA,
        no_effect="{kind} is not random",
    )


def _seed(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if value is None or isinstance(value, str):
        return value
    raise OptionError("must be a whole number or text", names_value=True)


@dataclass(frozen=True, slots=True)
class Check:
    """What has to hold between ``options`` (their names): ``problems`` of their values as a spec
    has them are (name, message, hint). Left out where one of them is known to be wrong."""

    options: tuple[str, ...]
    problems: Callable[[Mapping[str, Any]], Iterator[tuple[str, str, str]]]


class Record(Protocol):
    """A record of an output, as it is read again."""

    @property
    def key(self) -> bytes:
        """Its record key."""

    @property
    def first_name(self) -> bytes:
        """The name of its first member."""

    @property
    def payload_bytes(self) -> int:
        """The sizes of its members, without headers and padding."""

    def content(self, extension: str) -> bytes | None:
        """The content of its member with this whole extension, the last one if there are several;
        None if there is none."""


@dataclass(frozen=True, slots=True)
class SortValue:
    """What a record is sorted by, as Python compares: records of a lower rank first, then by value
    (None: by none)."""

    rank: int
    value: Any

    def comes_after(self, other: SortValue, *, decreasing: bool) -> bool:
        """Whether this has to come after ``other``, and not merely may."""
        if self.rank != other.rank:
            return self.rank > other.rank
        if self.value is None or self.value == other.value:
            return False
        after: bool = self.value > other.value
        return after is not decreasing


class OptionGroup:
    """A frozen dataclass whose fields are options: an algorithm, or an option that has parts."""

    __slots__ = ()

    @classmethod
    def options(cls) -> dict[str, Option]:
        """Its options by name."""
        return {each.name: each.metadata["option"] for each in fields(cls)}  # type: ignore[arg-type]


class Algorithm(OptionGroup):
    """How records are ordered: every algorithm is a sort, and ties keep the order of the input."""

    __slots__ = ()

    kind: ClassVar[str]
    summary: ClassVar[str]
    """How it orders, for the description of ``kind``: "by record key"."""
    words: ClassVar[str]
    """The same for the summary of a job: "alphanumeric: sorted by name"."""
    is_random: ClassVar[bool] = False
    """Whether it takes a ``seed``, and one is drawn where there is none."""
    spreads_evenly: ClassVar[bool] = False
    """Whether the high bits of the ``words`` of its sort keys are spread evenly, as a hash's are:
    then records are dealt out to partitions without a survey."""
    decided_by_inputs: ClassVar[bool] = False
    """Whether only the inputs say what the order is: then :meth:`expected` is never asked."""
    joins: ClassVar[bool] = False
    """Whether its sort keys are functions of record keys, but for the name of the shard: then
    records of several inputs can be joined as they are ordered, where that name is "", and small
    shards be extracted in runs."""
    joins_by_places: ClassVar[bool] = False
    """Whether joined records can be ordered so by one pass more, which finds their places: by what
    one of their pieces says, or by where the first of them is."""
    needs_keys: ClassVar[bool] = False
    """Whether the order is that of the records' keys: then :meth:`expected` is not asked where the
    outputs do not say what these were. See :attr:`asks_for_keys`."""
    checks: ClassVar[tuple[Check, ...]] = ()
    is_sort_key: ClassVar[bool] = False
    """Whether it may be one of several sort keys (``keys``)."""

    @classmethod
    def own_defaults(cls) -> dict[str, Any]:
        """What it takes where a spec gives nothing, but for None."""
        defaults = {each.name: each.default for each in fields(cls)}  # type: ignore[arg-type]
        return {name: it for name, it in defaults.items() if it is not MISSING and it is not None}

    @property
    def is_spread_evenly(self) -> bool:
        """:attr:`spreads_evenly`, with these options."""
        return self.spreads_evenly

    @property
    def placement(self) -> Placement | None:
        """What places records by their numbers among all records, which a survey counts; None:
        their sort keys say enough."""
        return None

    @property
    def seed_text(self) -> str:
        """What everything random is drawn with."""
        return ""

    @property
    def extensions(self) -> tuple[str, ...]:
        """The members whose content it reads, by their extensions with the dot: of a table, the
        columns."""
        return ()

    @property
    def asks_for_keys(self) -> bool:
        """Whether it, or something that it is made of, is ordered by the records' keys."""
        return self.needs_keys

    @property
    def has_texts(self) -> bool:
        """Whether its sort keys may have texts, in some shards if not in all."""
        return True

    @property
    def decreasing(self) -> bool:
        """Whether the largest sort key comes first; ranks and ties are not turned round."""
        return False

    @property
    def in_words(self) -> str:
        """What a summary says of it."""
        return self.words + ", decreasing" * self.decreasing

    def sort_keys(self, records: RecordTable) -> SortKeys:
        """The sort key of each record, without groups. About 1 µs a record, and less than that for
        what need not look into each. ``ContentKeyError`` names shard and record."""
        raise NotImplementedError

    def expected(self, record: Record) -> SortValue | None:
        """What an output record is sorted by; None where its content says nothing.

        For verification: plain Python, and nothing of what :meth:`sort_keys` does but to read a
        value.
        """
        raise NotImplementedError

    def hashes(
        self,
        shard: str,
        key_hash: UInt64s,
        earlier: Int64s | None = None,
        *,
        are_distinct: bool = False,
    ) -> UInt64s | None:
        """The words that order the records of an input shard, made of their key hashes alone; None:
        only :meth:`sort_keys` knows. ``earlier`` and ``are_distinct``: as of ``RecordTable``."""
        return None
