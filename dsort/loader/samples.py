"""Makes samples of records: dicts of ``bytes`` by extension, from memory or directly from a
file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, pairwise
from typing import Final

import numpy as np

from dsort.data.columns import Int64s
from dsort.loader.decode import Sample
from dsort.reading.record_index import RecordIndex, text_of
from dsort.reading.shard import Record, extension_of

__all__ = [
    "LARGE_BYTES",
    "Contents",
    "are_large",
    "bytes_of",
    "copied_from",
    "sample_of",
    "samples_of",
]

LARGE_BYTES: Final = 16 << 10
"""Members of a local file that are at least this large on average are read one by one, into the
``bytes`` that are returned. Smaller ones are cheaper to copy from a buffer: a call for each costs
more than the copy."""


def sample_of(record: Record, url: str) -> Sample:
    """A record in the form of webdataset: content by extension, ``__key__`` and ``__url__``."""
    contents = record.members.items()
    named = {extension_of(name, record.key).lower(): content for name, content in contents}
    return {"__key__": record.key, "__url__": url, **named}


def bytes_of(samples: Iterable[Sample]) -> int:
    """Roughly the memory that samples take before they are decoded."""
    return sum(map(len, chain.from_iterable(map(dict.values, samples))))


def are_large(index: RecordIndex, rows: Int64s) -> bool:
    """Whether the members of records ``rows``, which ascend, should be read one by one."""
    if not len(rows):
        return False
    first, stop = index.offsets[[int(rows[0]), int(rows[-1]) + 1]].tolist()
    sizes = index.size[first:stop]
    return int(sizes.sum()) >= LARGE_BYTES * max(len(sizes), 1)


Contents = Callable[[list[int], list[int]], Iterable[bytes]]
"""Takes the offsets of members in their shard and their sizes, and returns their contents."""


def copied_from(view: memoryview, base: int) -> Contents:
    """Contents copied from ``view``, which holds the bytes of the shard from byte ``base`` on."""

    def contents(starts: list[int], sizes: list[int]) -> Iterable[bytes]:
        return [
            view[start - base : start - base + size].tobytes()
            for start, size in zip(starts, sizes, strict=True)
        ]

    return contents


def samples_of(index: RecordIndex, rows: Int64s, contents: Contents, url: str) -> Iterator[Sample]:
    """The samples of records ``rows`` of ``index``; ``rows`` ascend. Takes about 1 µs a member, and
    the time of ``contents``."""
    extensions = _Extensions()
    for run in np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1):
        if not len(run):
            continue
        own = slice(int(run[0]), int(run[-1]) + 1)
        bounds = index.offsets[own.start : own.stop + 1]
        files = slice(int(bounds[0]), int(bounds[-1]))
        names = index.names.run(files.start, files.stop).tolist()
        starts, sizes = index.start[files].tolist(), index.size[files].tolist()
        found = iter(contents(starts, sizes))
        places = (bounds - files.start).tolist()
        for size, (first, stop) in zip(
            index.key_bytes[own].tolist(), pairwise(places), strict=True
        ):
            sample: Sample = {"__key__": text_of(names[first][:size]), "__url__": url}
            for file in range(first, stop):
                sample[extensions[names[file][size + 1 :]]] = next(found)
            yield sample


class _Extensions(dict[bytes, str]):
    """The text of each extension, by its bytes in names of members. Each is decoded once."""

    def __missing__(self, raw: bytes) -> str:
        extension = self[raw] = text_of(raw).lower()
        return extension
