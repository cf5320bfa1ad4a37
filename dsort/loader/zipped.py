"""Results that were cut alike, side by side: a sample has the members of all results."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from dsort.errors import InputError, SpecError
from dsort.loader.decode import Decoder, Sample
from dsort.loader.sample_stream import decoded
from dsort.naming.names import VIEW_SUFFIX, archive_extension
from dsort.reading.dataset import Dataset
from dsort.reading.places import Where

__all__ = ["merged", "refuse_other_cuts", "results_of", "zipped"]


def results_of(where: Where) -> list[Where]:
    """The results that ``where`` lists, to be read side by side; ``[where]`` if it is no list, or a
    list of shards. ``SpecError`` if it lists both."""
    if not isinstance(where, (list, tuple)) or not where:
        return [where]
    are_shards = {isinstance(each, (str, Path)) and _is_shard(str(each)) for each in where}
    if len(are_shards) > 1:
        raise SpecError("a list has either shards or results", hint="name the manifest of a result")
    return [where] if True in are_shards else list(where)


def _is_shard(text: str) -> bool:
    return bool(archive_extension(text)) or text.endswith(VIEW_SUFFIX)


def refuse_other_cuts(datasets: Sequence[Dataset]) -> None:
    """``InputError`` unless all results have the same number of shards, and equal numbers of
    records in them."""
    first, *others = datasets
    for each in others:
        if not np.array_equal(first.counts, each.counts):
            one, other = first.places[0].bucket.uri, each.places[0].bucket.uri
            raise InputError(
                f"{one} and {other} are not cut alike: {len(first.counts):,} shards of "
                f"{int(first.counts.sum()):,} records, {len(each.counts):,} of "
                f"{int(each.counts.sum()):,}",
                hint="make both with the same names of shards, keys, seed and cut",
            )


def merged(parts: Sequence[Sample]) -> Sample:
    """One sample of the samples of all results. ``InputError`` if their keys differ, or if two of
    them have a member of the same extension."""
    found = dict(parts[0])
    for each in parts[1:]:
        where = f"{found['__url__']} and {each['__url__']}"
        if each["__key__"] != found["__key__"]:
            raise InputError(
                f"record {found['__key__']!r} of {found['__url__']} stands beside record "
                f"{each['__key__']!r} of {each['__url__']}",
                hint="make both with the same names of shards, keys, seed and cut",
            )
        for name, value in each.items():
            if not name.startswith("__"):
                if name in found:
                    text = f"record {found['__key__']!r} has a member {name} in {where}"
                    raise InputError(text, hint="rename the members of one of them")
                found[name] = value
    return found


def zipped(
    streams: Sequence[Generator[Sample, None, None]], decode: Decoder | None, threads: int
) -> Generator[Sample, None, None]:
    """The samples of all streams side by side. A sample is decoded when it has the members of all
    streams."""
    with contextlib.ExitStack() as stack:
        for each in streams:
            stack.callback(each.close)
        whole: Iterator[Sample] = map(merged, zip(*streams, strict=True))
        if decode is None:
            yield from whole
            return
        pool = ThreadPoolExecutor(threads, thread_name_prefix="dsort-decode")
        stack.callback(pool.shutdown, wait=True, cancel_futures=True)
        yield from decoded(pool, decode, whole, ahead=2 * threads)
