"""A step from outside the package: every n-th record of each shard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from dsort.transforms.base import Step
from tests.support.internals import RecordTable

__all__ = ["EveryNth"]


@dataclass(frozen=True, slots=True)
class EveryNth(Step):
    """The first record of a shard, and every ``n``-th from there on."""

    n: int

    kind: ClassVar[str] = "every_nth"
    summary: ClassVar[str] = "Keep the first record of each shard, and every n-th after it."
    options_type = Annotated[int, Field(ge=1)]

    @classmethod
    def of(cls, options: int) -> EveryNth:
        return cls(options)

    @property
    def options(self) -> int:
        return self.n

    def apply(self, records: RecordTable) -> RecordTable:
        return records.keeping(np.arange(len(records)) % self.n == 0)
