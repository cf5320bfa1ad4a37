"""What output shards are called that keep the names of their input shards."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Self

from dsort.containers.registry import codec_of, container_of
from dsort.job.output_names import OutputNames
from dsort.naming.names import archive_extension, check_output_name
from dsort.naming.templates import NumberRange, ShardTemplate
from dsort.order.cut import OutputShard


def kept_name(name: str, extension: str) -> str:
    """What the output shard of the input shard ``name`` is called, where outputs are ``extension``
    shards: the same, unless its suffix would say something else than is in it."""
    suffix = archive_extension(name) or ""
    if not suffix:
        return f"{name}{extension}"
    same = container_of(suffix) == container_of(extension)
    if same and codec_of(suffix) == codec_of(extension):
        return name
    return f"{name.removesuffix(suffix)}{extension}"


@dataclass(frozen=True, slots=True)
class KeptNames(OutputNames):
    """One group, whose shard of number ``n`` is called as input ``n`` is. Its only template stands
    for all of them: it has what they begin with, and says how many there are."""

    listed: tuple[str, ...] = ()
    numbers: dict[str, int] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of_inputs(cls, inputs: Iterable[str], extension: str) -> Self:
        """For the shards of these names; ``ValueError`` if one cannot be that of an output."""
        listed = tuple(kept_name(name, extension) for name in inputs)
        for name in listed:
            check_output_name(name)
        ends = (min(listed, default=""), max(listed, default=""))
        pairs = takewhile(lambda pair: pair[0] == pair[1], zip(*ends, strict=False))
        prefix = "".join(each for each, _ in pairs)
        counter = NumberRange(0, 1, len(listed), 1, "")
        template = ShardTemplate("of the inputs' names", "fmt", prefix, (counter,))
        numbers = {name: number for number, name in enumerate(listed)}
        return cls((template,), extension, (len(listed),), listed=listed, numbers=numbers)

    def counted(self, shards: Iterable[OutputShard]) -> Self:
        """The same: it is known how many there are."""
        return self

    def counted_in(self, names: Collection[str]) -> Self:
        """The same."""
        return self

    def _inside(self, group: int, number: int) -> str:
        """The name of shard ``number``."""
        return self.listed[number]

    def number_of(self, group: int, name: str) -> int | None:
        """The number of the shard that is called ``name``."""
        return self.numbers.get(name)

    def made(self, names: Collection[str], first: Sequence[int]) -> set[str]:
        """Those of ``names`` that are an output's, from the number in ``first`` on."""
        return {name for name in names if self.numbers.get(name, -1) >= first[0]}

    def some(self, group: int, first: int, count_max: int) -> list[str]:
        """The names from number ``first`` on, ``count_max`` at most."""
        return list(self.listed[first : first + count_max])
