"""A sample of a result: the output shards that ``dsort verify --sample`` reads, and the checks that
it leaves out."""

from __future__ import annotations

import math
from collections.abc import Collection

import xxhash
from msgspec import Struct

from dsort.errors import InputError

NOT_CHECKED = (
    "the content of the other shards: only their names, sizes and counts in the manifest",
    "records against the inputs: that none is missing, changed or from elsewhere",
    "equal keys in two shards of which one was not read",
    "the content of the lineage, and of files beside shards that were not read",
)


class Sample(Struct, frozen=True):
    """A random ``part`` (above 0, at most 1) of the shards of a result; false if that is all of
    them. The same ``seed`` draws the same shards."""

    part: float
    seed: str

    @staticmethod
    def of(part: float, seed: str) -> Sample:
        """The sample of that ``part``. ``InputError`` if it is no part."""
        if not 0 < part <= 1:
            raise InputError(f"a sample is a part above 0, and at most 1, not {part}")
        return Sample(part, seed)

    def __bool__(self) -> bool:
        return self.part < 1

    def drawn(self, shards: Collection[str]) -> frozenset[str]:
        """The shards to read: at least one, unless the result has none."""
        ranked = sorted(shards, key=lambda name: xxhash.xxh3_64_digest(_text(self.seed, name)))
        return frozenset(ranked[: math.ceil(self.part * len(shards))])


class SampleReport(Struct, frozen=True):
    """The share of a result that was read: ``shards`` of its output shards. ``not_checked``: the
    checks that the report therefore lacks."""

    part: float
    seed: str
    shards: int
    not_checked: tuple[str, ...] = NOT_CHECKED


def _text(seed: str, name: str) -> bytes:
    return f"{len(seed)} {seed}{name}".encode("utf-8", "surrogateescape")
