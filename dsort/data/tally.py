"""Counts of the members and records that reactions dropped, kept or renamed, with a few names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct, field

from dsort.data.json_values import INTEGER_MAX

SAMPLES_MAX = 10
FITS = "fits "
"""The prefix of kinds that are no reactions: entries of options that fit something in a shard."""
FLOW = "flow "
"""Another prefix of kinds that are no reactions. These kinds count, for one shard, the records that
each cause dropped or added, and the records that were read, if their number is not that of the
extracted records."""
FLOW_READ, FLOW_DROPPED, FLOW_ADDED = f"{FLOW}read", f"{FLOW}dropped ", f"{FLOW}added "


class Tally(Struct):
    """Counts by kind. Merged in input order, so that the samples do not depend on workers."""

    counts: dict[str, int] = field(default_factory=dict)
    samples: dict[str, list[str]] = field(default_factory=dict)
    named: dict[str, list[str]] | None = None  # all names by kind; None: not collected

    def add(self, kind: str, count: int = 1, names: Iterable[str] = ()) -> None:
        """Count ``count`` more of ``kind``, and keep the first names of each kind."""
        if count <= 0:
            return
        self.counts[kind] = self.counts.get(kind, 0) + count
        kept = self.samples.setdefault(kind, [])
        if self.named is not None:
            names = list(names)
            self.named.setdefault(kind, []).extend(names)
        for name in names:
            if len(kept) >= SAMPLES_MAX:
                break
            kept.append(name)

    def merge(self, other: Tally) -> None:
        """Add all of ``other``."""
        for kind, count in other.counts.items():
            self.add(kind, count, other.samples.get(kind, ()))

    def without(self, prefix: str) -> tuple[Tally, dict[str, int]]:
        """Return (the tally without kinds that begin with ``prefix``, the counts of those kinds by
        the rest of their names)."""
        own = {kind for kind in self.counts if kind.startswith(prefix)}
        counts = {kind: count for kind, count in self.counts.items() if kind not in own}
        samples = {kind: names for kind, names in self.samples.items() if kind not in own}
        taken = {kind.removeprefix(prefix): self.counts[kind] for kind in own}
        return Tally(counts, samples, self.named), taken

    def __iter__(self) -> Iterator[TallyRow]:
        for kind in sorted(self.counts):
            yield TallyRow(kind, self.counts[kind], tuple(self.samples.get(kind, ())))


Cases = Annotated[int, Meta(ge=1, le=INTEGER_MAX)]
"""The count of a kind. Kinds without cases are not counted."""


class TallyRow(NamedTuple):
    """The count of one kind, with the names of its first cases."""

    kind: str
    number: Cases
    samples: tuple[str, ...]


def tally_rows(tally: Tally) -> list[TallyRow]:
    """The rows of a tally, in types that JSON has."""
    return list(tally)


def tally_of(rows: Iterable[tuple[str, int, Iterable[str]]]) -> Tally:
    """The tally from which ``tally_rows`` made ``rows``, possibly by way of JSON."""
    tally = Tally()
    for kind, count, samples in rows:
        tally.add(kind, count, samples)
    return tally
