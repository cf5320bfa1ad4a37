"""The interfaces of algorithms, which are listed in ``algorithms``, and of given places.

An algorithm is a frozen struct in a separate file. Its fields are its options
(``dsort.option_fields``), with the names that specs use. Reading a spec must not load NumPy, so
algorithms import it where they use it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Protocol

from msgspec import Struct

from dsort.option_fields import OptionError, OptionGroup, option

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dsort.data.columns import Bools, Int32s, Int64s, UInt64s
    from dsort.data.index import SortKeys
    from dsort.data.members import MemberTable
    from dsort.data.record_table import RecordTable
    from dsort.data.records import FormedRecords
    from dsort.order.placement import Placement


def decreasing_option() -> Any:
    """The option ``decreasing``, which several algorithms have. Specs add the names of these
    algorithms to its description."""
    return option(bool, "Largest first.", default=False)


def compare_option() -> Any:
    """The option ``compare``, for algorithms that order by names."""
    return option(
        Literal["key", "name"] | None,
        "Of alphanumeric and md5: key (the default) compares record keys; name compares the whole "
        "names of first members, as AIStore does: a-1.jpg comes before a.jpg. By name, md5 is the "
        "order of names, as it is in AIStore. For .tar and .zip shards.",
    )


_SEED_SCHEMA: Final = {"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]}


def seed_option() -> Any:
    """The option ``seed``, for random algorithms."""
    return option(
        str | None,
        "Of a shuffle: any whole number or text; 42 and '42' are the same seed. Absent: a seed "
        "is drawn, and is in the manifest.",
        check=_seed,
        before=True,
        json_schema=_SEED_SCHEMA,
        no_effect="{kind} is not random",
    )


def _seed(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str):
        return value
    raise OptionError("must be a whole number or text", names_value=True)


class Record(Protocol):
    """A record of an output, as it is read for verification."""

    @property
    def key(self) -> bytes:
        """The key of the record."""

    @property
    def first_name(self) -> bytes:
        """The name of its first member."""

    @property
    def payload_bytes(self) -> int:
        """The sizes of its members, without headers and padding."""

    @property
    def is_json_alone(self) -> bool:
        """Whether the record is a ``.json`` member and nothing else, as in
        ``RecordTable.json_alone``."""

    def content(self, extension: str) -> bytes | None:
        """The content of its member with this whole extension, the last one if it has several; None
        if it has none."""


class SortValue(Struct, frozen=True):
    """The value by which a record is sorted, for comparison in Python: first by rank, in ascending
    order, then by value. Values of one rank are comparable; a rank without values has None."""

    rank: int
    value: Any

    def comes_after(self, other: SortValue, *, decreasing: bool) -> bool:
        """Whether this value must come after ``other``; False if the two may have any order."""
        if self.rank != other.rank:
            return self.rank > other.rank
        if self.value == other.value:
            return False
        after: bool = self.value > other.value
        return after is not decreasing


class Algorithm(OptionGroup, frozen=True):
    """How records are ordered: every algorithm is a sort, and ties keep the order of the input."""

    kind: ClassVar[str]
    summary: ClassVar[str]
    """How it orders, for the description of ``kind``: "by record key"."""
    words: ClassVar[str]
    """How it orders, for the summary of a job: "alphanumeric: sorted by name"."""
    is_random: ClassVar[bool] = False
    """Whether it uses a ``seed``; then one is drawn if a spec has none."""
    spreads_evenly: ClassVar[bool] = False
    """Whether the high bits of the ``words`` of its sort keys are spread evenly, like those of a
    hash: then partitions need no survey."""
    decided_by_inputs: ClassVar[bool] = False
    """Whether the inputs alone decide the order: then :meth:`expected` is never called."""
    joins: ClassVar[bool] = False
    """Whether its sort keys depend only on record keys and the name of the shard. Then records of
    several inputs can be joined while they are ordered, with "" as that name, and small shards can
    be extracted in runs."""
    joins_by_places: ClassVar[bool] = False
    """Whether one more pass can order joined records this way, by finding their places: by a value
    in one of their pieces, or by the position of their first piece."""
    needs_keys: ClassVar[bool] = False
    """Whether records are ordered by their keys: then :meth:`expected` is not called if the outputs
    do not show these keys. See :attr:`asks_for_keys`."""
    is_sort_key: ClassVar[bool] = False
    """Whether it may be one of several sort keys (``keys``)."""

    @classmethod
    def own_defaults(cls) -> dict[str, Any]:
        """The values of options that the algorithm uses if a spec has none, except None."""
        used = {name: each.used_default for name, each in cls.stated().items()}
        return {name: value for name, value in used.items() if value is not None}

    @property
    def is_spread_evenly(self) -> bool:
        """:attr:`spreads_evenly`, for these options."""
        return self.spreads_evenly

    @property
    def placement(self) -> Placement | None:
        """The rule that places records by their numbers among all records, for which a survey
        counts records; None: sort keys suffice."""
        return None

    @property
    def seed_text(self) -> str:
        """The seed of everything that is random."""
        return ""

    @property
    def extensions(self) -> tuple[str, ...]:
        """The extensions, with the dot, of the members whose content it reads; for a table, the
        columns."""
        return ()

    @property
    def asks_for_keys(self) -> bool:
        """Whether this algorithm, or one that it contains, orders records by their keys."""
        return self.needs_keys

    @property
    def has_texts(self) -> bool:
        """Whether the sort keys of some shards may have texts."""
        return True

    @property
    def has_hashes(self) -> bool:
        """Whether key hashes order all records, or the records that tie by all other sort keys: see
        :meth:`hashes`."""
        return False

    @property
    def decreasing(self) -> bool:
        """Whether the largest sort key comes first; ranks and ties are not reversed."""
        return False

    @property
    def in_words(self) -> str:
        """The text for the algorithm in the summary of a job."""
        return self.words + ", decreasing" * self.decreasing

    def sort_keys(self, records: RecordTable) -> SortKeys:
        """The sort key of each record, without groups. This takes about 1 µs a record, and less if
        the content of records need not be read. ``ContentKeyError`` names shard and record."""
        raise NotImplementedError

    def expected(self, record: Record) -> SortValue | None:
        """The value by which an output record is sorted; None if the content of the record does not
        decide it.

        For verification: plain Python, which shares no code with :meth:`sort_keys` except for
        reading a value.
        """
        raise NotImplementedError

    def hashes(
        self,
        shard: str,
        key_hash: UInt64s,
        earlier: Int64s | None = None,
        *,
        are_distinct: bool = False,
    ) -> UInt64s:
        """The words that order the records of an input shard, from their key hashes alone; only if
        :attr:`has_hashes`. ``earlier`` and ``are_distinct``: as in ``RecordTable``."""
        raise NotImplementedError


class KeyMatch(Struct, frozen=True, eq=False):
    """Where records belong by their keys. All columns have shape ``(records,)``.

    ``groups``: the ordinal of each record's output template, 0 where no templates are given. A
    record without a place is either ``missing`` (no key matches it) or ``ambiguous`` (keys of two
    templates match it). Its group is that of the default template, or -1 if there is no default.
    """

    groups: Int32s
    missing: Bools
    ambiguous: Bools


class GivenPlaces(Struct, frozen=True, eq=False, dict=True):
    """Where records belong by their keys, from an external key map or another result. This class is
    for jobs that have neither, and is false.

    ``field``: the field of specs that gives the names of outputs. ``missing_hint``,
    ``twice_hint``: what to do about records without a place, and about records with equal keys."""

    field: ClassVar[str] = "output_format"
    missing_hint: ClassVar[str] = ""
    twice_hint: ClassVar[str] = (
        "duplicate_keys: rename gives such records new keys, warn keeps them"
    )

    def __bool__(self) -> bool:
        return False

    @property
    def words(self) -> str:
        """The source of the places, as a part of a sentence."""
        return ""

    @property
    def templates(self) -> tuple[str, ...]:
        """The output templates of records; empty if the templates of the spec apply."""
        return ()

    @property
    def shards(self) -> tuple[str, ...]:
        """The names of all output shards, if they are given."""
        return ()

    @property
    def counts(self) -> tuple[int, ...]:
        """The numbers of the records of ``shards``."""
        return ()

    def ordering(self, own: Algorithm) -> Algorithm:
        """The algorithm that orders records. ``own``: the algorithm of the spec."""
        return own

    def match(
        self, records: FormedRecords, members: MemberTable, *, are_joined: bool = False
    ) -> KeyMatch:
        """Where ``records`` belong, which are rows of ``members``. ``are_joined``: whether they are
        pieces of records, so that their keys alone count."""
        raise NotImplementedError

    def expected(
        self, records: FormedRecords, members: MemberTable, *, are_joined: bool = False
    ) -> Int32s:
        """The groups of :meth:`match`, for verification: in plain Python where that is another
        way to find them."""
        return self.match(records, members, are_joined=are_joined).groups

    def refuse_missing(self, found: Iterable[SortKeys]) -> None:
        """``KeyMapError`` that names the first place that no record has. ``found``: the sort keys
        of all records."""

    def digest(self) -> str:
        """A digest, equal for two objects of this class that place all records in the same way."""
        return ""


NO_PLACES: Final = GivenPlaces()
