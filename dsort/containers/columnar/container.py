"""The containers of rows: their interface to specs, inspection and conversions.

Jobs that write such shards move rows and not bytes, as ``is_columnar`` shows, and workers use
``reader`` and ``writer``. For all other uses, members of a shard are in the layout of Hugging Face:
a column ``jpg`` of the row ``a`` is the member ``a.jpg``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dsort.containers.base import Container, ContainerOptions, Need, OddityKind, Scanner
from dsort.containers.facets import Names

if TYPE_CHECKING:
    from dsort.data.members import MemberTable


@dataclass(frozen=True)
class Columnar(Container):
    """Parquet or Arrow IPC. ``suffixes``: the format that is written; the format of an input is
    found in its bytes."""

    suffixes: tuple[str, ...] = (".parquet",)
    options: ContainerOptions = field(default_factory=ContainerOptions)
    decoded_max: float = field(default=math.inf, compare=False)

    is_columnar = True
    names = Names.beside()
    keeps_keys = True
    oddities = (
        OddityKind(
            "other_metadata",
            kind="other_metadata",
            warning="{count} [shard has|shards have] other schema metadata than the first one: "
            "{names}",
            by_shard=True,
        ),
    )

    def with_options(self, options: ContainerOptions) -> Columnar:
        """See :class:`Container`."""
        return replace(self, options=options)

    def load(self) -> None:
        """See :class:`Container`."""
        import pyarrow.compute
        import pyarrow.parquet  # noqa: F401

    def within(self, decoded_max: float) -> Columnar:
        """See :class:`Container`."""
        return replace(self, decoded_max=decoded_max)

    @property
    def numbers_records(self) -> bool:
        """See :class:`Container`."""
        return not self.options.key_field

    def scanner(self, shard: str, size_bytes: int) -> Scanner:
        """Reads a shard as a whole, because the footer at its end has all places. The cells become
        members."""
        from dsort.containers.columnar.cells import cells_of_shard

        key_field = self.options.key_field
        return cells_of_shard(shard, (yield Need(0, size_bytes)), key_field, self.decoded_max)

    def bare(self, members: MemberTable, read: Callable[[int, int], bytes]) -> MemberTable:
        """Cells are bare already."""
        return members


PARQUET = Columnar((".parquet",))
ARROW = Columnar((".arrow",))
ARROW_STREAM = Columnar((".arrows",))
