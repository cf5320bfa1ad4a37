"""The step ``sample``: keeps a fraction of the records, the same ones on every run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NotRequired

from annotated_types import Ge, Le
from typing_extensions import TypedDict

from dsort.transforms.base import OPTIONS_CONFIG, Step

if TYPE_CHECKING:
    from dsort.data.record_table import RecordTable

__all__ = ["Sample"]


class SampleOptions(TypedDict):
    """What a spec gives for ``sample``."""

    __pydantic_config__ = OPTIONS_CONFIG  # type: ignore[misc]

    fraction: Annotated[float, Ge(0), Le(1)]
    """Of the records, from 0 to 1. A smaller fraction keeps some of those that a larger keeps."""
    by: NotRequired[Literal["key", "record"]]
    """What is drawn by lot. key (default): records of one key stay or go together, whatever shard
    they are in. record: each record, by its key and its shard."""
    seed: NotRequired[str | int]
    """Another seed keeps other records. Default: 0. It has nothing to do with a shuffle's."""


@dataclass(frozen=True, slots=True)
class Sample(Step):
    """Keeps a record if the hash of its key, as a fraction of all hashes, is below ``fraction``."""

    fraction: float
    by: str = "key"
    seed: str = "0"

    kind: ClassVar[str] = "sample"
    summary: ClassVar[str] = (
        "Keep a fraction of the records, chosen by a hash: the same ones on every run."
    )
    options_type: ClassVar[Any] = SampleOptions
    is_for_rows = True

    @classmethod
    def of(cls, options: SampleOptions) -> Sample:
        """The step with these options."""
        return cls(options["fraction"], options.get("by", "key"), str(options.get("seed", 0)))

    @property
    def options(self) -> dict[str, Any]:
        """All of them."""
        return {"fraction": self.fraction, "by": self.by, "seed": self.seed}

    def apply(self, records: RecordTable) -> RecordTable:
        """The records that stay."""
        import numpy as np

        from dsort.data.hashes import mix, shard_seed

        lot_of = shard_seed(f"sample {self.seed}", records.shard if self.by == "record" else "")
        lots = mix(records.key_hash ^ np.uint64(lot_of))
        # Compared as integers: a fraction is a float, whose 53 bits set the border exactly.
        below = int(self.fraction * 2**64)
        kept = np.ones(len(lots), np.bool_) if below >= 2**64 else lots < np.uint64(below)
        return records.keeping(kept)
