"""How often each record of the inputs comes out: made from the spec and the records alone."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, floor

import numpy as np

from dsort.data.columns import Int64s, UInt64s
from dsort.data.copies import lots_of
from dsort.errors import MixError
from dsort.spec.model import JobSpec
from dsort.storage.several import parted
from dsort.verification.shares import dealt_out


def copies_asked_for(spec: JobSpec, hashes: Mapping[str, UInt64s]) -> dict[str, Int64s]:
    """By shard: how often each of its records comes out. ``hashes``: of the keys of the records of
    all shards, in input order. ``MixError`` if the inputs do not have what is asked for."""
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
    """How many records come out of each input that has an exact number, by its name; there are
    ``records`` of it."""
    mix, weights = spec.mix, {source.name: source.weight for source in spec.sources}
    if mix is None:
        wanted = {each.name: each.records for each in spec.sources if each.records is not None}
    elif mix.records is not None:
        parts = dealt_out(mix.records, list(weights.values()))
        wanted = dict(zip(weights, parts, strict=True))
    else:
        # So often each would come out whole, if its weight was 1.
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
