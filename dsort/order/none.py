"""The algorithm ``none``: records keep the order of the inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from dsort.order.base import Algorithm

if TYPE_CHECKING:
    from dsort.data.index import SortKeys
    from dsort.data.record_table import RecordTable


class InputOrder(Algorithm, frozen=True):
    """All sort keys are equal, and ties keep the order of the inputs."""

    kind: ClassVar[str] = "none"
    summary: ClassVar[str] = "as they come in"
    words: ClassVar[str] = "none: as the records come in"
    decided_by_inputs: ClassVar[bool] = True
    joins_by_places: ClassVar[bool] = True

    def sort_keys(self, records: RecordTable) -> SortKeys:
        """Sort keys without columns."""
        from dsort.data.index import SortKeys

        return SortKeys(len(records))
