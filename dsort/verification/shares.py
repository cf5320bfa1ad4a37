"""The shares of inputs and outputs in whole numbers, for ``verify``: worked out from the spec and
the records alone. A lot is a random number that a record draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import ceil, floor

import numpy as np

from dsort.data.columns import Bools, Int32s, Int64s, UInt64s
from dsort.data.shares import lots_of
from dsort.errors import MixError
from dsort.spec.model import JobSpec
from dsort.storage.routed import parted
from dsort.transforms.outputs import Division


def copies_asked_for(
    spec: JobSpec, records: Mapping[str, tuple[UInt64s, Bools]]
) -> dict[str, Int64s]:
    """For each shard (by name): how often each of its records is written. ``records``: the hashes
    of the keys of the records of each shard, and which of them are weighed, in input order; the
    others are not written. ``MixError`` if the inputs have too few records."""
    found = _copies_of_all(spec, {name: own[left] for name, (own, left) in records.items()})
    for name, (_, left) in records.items():
        counts = left.astype(np.int64)
        counts[left] = found[name]
        found[name] = counts
    return found


def _copies_of_all(spec: JobSpec, hashes: Mapping[str, UInt64s]) -> dict[str, Int64s]:
    """The same, of inputs all of whose records are weighed."""
    found: dict[str, Int64s] = {}
    shards: dict[str, list[str]] = {source.name: [] for source in spec.sources}
    for shard in hashes:
        shards[parted(shard)[0]].append(shard)
    records = {name: sum(len(hashes[shard]) for shard in names) for name, names in shards.items()}
    wanted = _wanted_records(spec, records)
    seed = "0" if spec.mix is None else spec.mix.seed
    for source in spec.sources:
        names = shards[source.name]
        sizes = [len(hashes[shard]) for shard in names]
        all_hashes = np.concatenate([np.zeros(0, np.uint64), *(hashes[shard] for shard in names)])
        lots = lots_of(all_hashes, seed, source.name)
        if source.name in wanted:
            least, more = divmod(wanted[source.name], max(len(lots), 1))
            once_more = np.argsort(lots, kind="stable")[:more]
        else:
            least, rest = divmod(source.weight, 1)
            once_more = np.flatnonzero(lots < np.uint64(ceil(rest * 2**64)))
        counts = np.full(len(lots), least, np.int64)
        counts[once_more] += 1
        parts = np.split(counts, np.cumsum(sizes)[:-1]) if names else []
        found.update(zip(names, parts, strict=True))
    return found


def _wanted_records(spec: JobSpec, records: Mapping[str, int]) -> dict[str, int]:
    """How many records of each input are written, by its name, for the inputs with an exact number.
    ``records``: how many records each input has."""
    mix, weights = spec.mix, {source.name: source.weight for source in spec.sources}
    if mix is None:
        wanted = {each.name: each.records for each in spec.sources if each.records is not None}
    elif mix.records is not None:
        parts = dealt_out(mix.records, list(weights.values()))
        wanted = dict(zip(weights, parts, strict=True))
    else:
        # In a round, each input gives as many records as its weight: rounds until it is used up.
        rounds = [records[name] / weight for name, weight in weights.items()]
        if mix.stop == "first_exhausted":
            wanted = {name: floor(min(rounds) * weight) for name, weight in weights.items()}
        else:
            wanted = {name: ceil(max(rounds) * weight) for name, weight in weights.items()}
    repeats = mix is None or mix.records is None or mix.replacement
    for name, count in wanted.items():
        there = records[name]
        if count and not there:
            text = f"{count:,} records are wanted of the input {name}, which has none"
            raise MixError(text, hint="leave it out, or look at its input_format")
        if count > there and not repeats:
            raise MixError(
                f"{count:,} records are wanted of the input {name}, which has {there:,}",
                hint="mix.replacement: true takes them several times; or lower mix.records, or the "
                "weight of the input",
            )
    return wanted


def dealt_out(total: int, weights: Sequence[Fraction]) -> list[int]:
    """``total`` divided into whole parts in proportion to ``weights``. Each part is rounded down;
    the rest is given, one each, to the parts that lost most by that, to the first of equal
    ones."""
    exact = [total * weight / sum(weights) for weight in weights]
    parts = [int(each) for each in exact]
    lost = [each % 1 for each in exact]
    for _ in range(total - sum(parts)):
        at = lost.index(max(lost))
        parts[at] += 1
        lost[at] = Fraction(-1)
    return parts


def dealt_out_in_classes(totals: Sequence[int], weights: Sequence[Fraction]) -> list[list[int]]:
    """The parts of each of several ``totals``, so that their sums are the parts of the sum of all
    totals. The rest of a total is given to the parts that still miss most; of equal ones, to the
    part that lost most by rounding down."""
    wanted = dealt_out(sum(totals), weights)
    shares = [weight / sum(weights) for weight in weights]
    parts = [[int(total * share) for share in shares] for total in totals]
    missing = [all_of_it - sum(own) for all_of_it, *own in zip(wanted, *parts, strict=True)]
    for total, own in zip(totals, parts, strict=True):
        lost = [total * share % 1 for share in shares]
        order = sorted(range(len(own)), key=lambda at: (missing[at], lost[at]), reverse=True)
        for at in order[: total - sum(own)]:
            own[at] += 1
            missing[at] -= 1
    return parts


def outputs_asked_for(division: Division, lots: UInt64s, counting: Bools) -> Int32s:
    """The output of each record, in input order. ``lots``: the class and the lot of each, shape
    ``(n, 2)``. Records that are not ``counting`` are not counted and get the first output."""
    outputs = np.zeros(len(lots), np.int32)
    rows = np.flatnonzero(counting)
    rows = rows[np.lexsort((lots[rows, 1], lots[rows, 0]))]  # ties stay in input order
    totals = np.unique(lots[rows, 0], return_counts=True)[1].tolist()
    weights = [Fraction(str(each)) for each in division.fractions]
    if division.exact:
        parts = dealt_out_in_classes(totals, weights)
    else:
        parts = [dealt_out(total, weights) for total in totals]
    numbers = np.tile(np.arange(len(weights), dtype=np.int32), len(totals))
    outputs[rows] = np.repeat(numbers, np.array(parts, np.int64).reshape(-1))
    return outputs
