"""The names, sizes and splits of the shards that a verb writes."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Struct

from dsort.cli.parameters import Option
from dsort.errors import SpecError, SpecProblem

__all__ = ["NAMES", "OutputShards"]

NAMES = "shard-%06d"
SHARD_SIZE = "1GB"


class OutputShards(Struct, frozen=True, kw_only=True):
    """The options of each verb that writes shards with names and sizes of its own."""

    names: Annotated[
        str, Option("--names", metavar="TEMPLATE", help="The names of output shards.")
    ] = NAMES
    shard_size: Annotated[
        str | None,
        Option(
            metavar="SIZE",
            help=f"The bytes of payload at which an output shard closes.  [default: {SHARD_SIZE}]",
        ),
    ] = None
    shard_records: Annotated[
        int | None,
        Option(metavar="N", help="The number of records in an output shard.", min=1),
    ] = None
    shards: Annotated[
        int | None,
        Option("--shards", metavar="N", help="The number of output shards.", min=1),
    ] = None
    split: Annotated[
        str | None,
        Option(
            metavar="NAME=PART,...",
            help="Split the records by shares: train=0.9,val=0.1 writes to DST/train and DST/val.",
        ),
    ] = None

    def fields(self, dst: str, *, count: int | None = None) -> dict[str, Any]:
        """The fields of a spec. ``count``: the number of shards, used if no option sets a size or a
        number. A shard on standard output has no name."""
        sizes = {
            "output_shard_size": self.shard_size,
            "output_shard_records": self.shard_records,
            "output_shard_count": self.shards,
        }
        ends = {field: value for field, value in sizes.items() if value is not None}
        if not ends and dst != "-":
            ends = (
                {"output_shard_size": SHARD_SIZE}
                if count is None
                else {"output_shard_count": count}
            )
        named = {} if dst == "-" and self.names == NAMES else {"output_format": self.names}
        if self.split is None:
            return {**named, **ends}
        if "{split}" not in self.names:
            named["output_format"] = f"{{split}}/{self.names}"
        return {**named, **ends, "outputs": _splits(self.split)}


def _splits(text: str) -> list[dict[str, object]]:
    """The ``outputs`` of a spec for a text like ``train=0.9,val=0.1``."""
    found: list[dict[str, object]] = []
    for part in text.split(","):
        name, equals, fraction = (each.strip() for each in part.partition("="))
        try:
            found.append({"name": name, "fraction": float(fraction)})
        except ValueError:
            equals = ""
        if not (name and equals):
            problem = SpecProblem(
                "--split", f"{part.strip()!r} is no NAME=PART", "train=0.9,val=0.1"
            )
            raise SpecError([problem])
    return found
