"""A step from outside the package: every n-th record of each shard."""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge

from dsort.option_fields import option
from dsort.transforms.base import Step
from tests.support.internals import RecordTable


class EveryNth(Step, frozen=True):
    """The first record of a shard, and every ``n``-th from there on."""

    kind: ClassVar[str] = "every_nth"
    summary: ClassVar[str] = "Keep the first record of each shard, and every n-th after it."
    bare: ClassVar[str] = "n"

    n: int = option(Annotated[int, Ge(1)], "The distance of two records.", required="2")

    def apply(self, records: RecordTable) -> RecordTable:
        return records.keeping(np.arange(len(records)) % self.n == 0)
