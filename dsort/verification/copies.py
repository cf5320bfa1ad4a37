"""How often each record of the inputs comes out: made from the spec and the records alone."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

import numpy as np

from dsort.data.columns import Int64s, UInt64s
from dsort.data.copies import lots_of
from dsort.job.surveys.copies import counts_records, mix_seed, wanted_records
from dsort.spec.model import JobSpec
from dsort.storage.several import parted


def copies_asked_for(spec: JobSpec, hashes: Mapping[str, UInt64s]) -> dict[str, Int64s]:
    """By shard: how often each of its records comes out. ``hashes``: of the keys of the records of
    all shards, in input order. ``MixError`` if the inputs do not have what is asked for."""
    found: dict[str, Int64s] = {}
    shards: dict[str, list[str]] = {source.name: [] for source in spec.sources}
    for shard in hashes:
        shards[parted(shard)[0]].append(shard)
    records = {name: sum(len(hashes[shard]) for shard in names) for name, names in shards.items()}
    wanted = wanted_records(spec, records) if counts_records(spec) else {}
    for source in spec.sources:
        names = shards[source.name]
        sizes = [len(hashes[shard]) for shard in names]
        all_hashes = np.concatenate([np.zeros(0, np.uint64), *(hashes[shard] for shard in names)])
        lots = lots_of(all_hashes, mix_seed(spec), source.name)
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
