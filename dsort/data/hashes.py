"""The hashes that order and compare records, and a permutation of numbers by hashes. All are
defined only here, and depend on no library's random numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from dsort.data.columns import BytesColumn, Int64s, UInt64s, last_true

_ADD = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLY_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLY_2 = np.uint64(0x94D049BB133111EB)
_ROUNDS_MAX = 6
_SORTED_MAX = 4096
_MIXED_AT_ONCE = 8192
"""Words that are mixed at a time: this many stay in the processor's cache between the steps of
``mix``."""


def hash_keys(keys: Iterable[bytes], count: int) -> UInt64s:
    """XXH3 (64 bits, seed 0) of each of ``count`` byte strings, shape ``(count,)``."""
    return np.fromiter(map(xxhash.xxh3_64_intdigest, keys), np.uint64, count)


def shard_seed(seed: str, shard_name: str) -> int:
    """The 64-bit seed of one shard, so that equal keys in two shards get different sort keys."""
    outer = xxhash.xxh3_64_intdigest(seed.encode("utf-8", "surrogateescape"))
    return xxhash.xxh3_64_intdigest(shard_name.encode("utf-8", "surrogateescape"), seed=outer)


def mix(words: UInt64s) -> UInt64s:
    """SplitMix64's output function over each word: a bijection that spreads every input bit."""
    z = words + _ADD
    z ^= z >> np.uint64(30)
    z *= _MULTIPLY_1
    z ^= z >> np.uint64(27)
    z *= _MULTIPLY_2
    z ^= z >> np.uint64(31)
    return z


def any_twice(hashes: UInt64s) -> bool:
    """Whether a hash occurs more than once. The top bits of a row's hash are the number of its
    slot. Each row writes its row number into its slot. A row that finds another number there is
    compared with that row; if their hashes differ, the row takes part in the next round. The search
    takes half the time of a sort."""
    for _ in range(_ROUNDS_MAX):
        if len(hashes) <= _SORTED_MAX:
            break
        bits = len(hashes).bit_length() + 1
        slot = (hashes >> np.uint64(64 - bits)).view(np.int64)
        rows = np.arange(len(hashes), dtype=np.int32)
        last = np.empty(1 << bits, np.int32)
        last[slot] = rows
        found = last[slot]
        lost = np.flatnonzero(found != rows)
        again = hashes[lost]
        if bool((again == hashes[found[lost]]).any()):
            return True
        hashes = mix(again)  # a bijection moves other bits to the top, and keeps hashes distinct
    ordered = np.sort(hashes)
    return bool((ordered[1:] == ordered[:-1]).any())


def earlier_equal(values: NDArray[Any]) -> Int64s:
    """How many earlier rows have the same value, for each row."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    begins = np.append(True, ordered[1:] != ordered[:-1])[: len(order)]
    earlier = np.empty(len(order), np.int64)
    earlier[order] = np.arange(len(order)) - last_true(begins)
    return earlier


# The shuffle's sort key of a record is `mix(XXH3_64(record key) ^ shard_seed)` where `shard_seed =
# XXH3_64(shard name, seed=XXH3_64(seed text))` and `mix` is the finaliser of SplitMix64 (Steele,
# Lea, Flood 2014; a bijection of 64-bit words). The sort key includes the shard's name because many
# datasets number their keys anew in every shard: with the key alone, all records with the same key
# would be side by side. For the same reason, the n-th repetition of a key in one shard (n from 1
# on) has the sort key `mix(w ^ n)`, where `w` is the sort key of the first record with this key.
# The hash of a stray (such as a member without an extension, see `records`) is salted, so that `a`
# and `a.jpg` are different records.
def shuffle_words(
    key_hash: UInt64s,
    seed_of_shard: int,
    earlier: Int64s | None = None,
    *,
    are_distinct: bool = False,
) -> UInt64s:
    """The shuffle's sort keys of one shard's records, in order; shape ``(n,)``. ``earlier``: for
    each record, how many earlier records of the shard have its key; None: no record has any.
    ``are_distinct``: all keys are known to differ, so no search for repeated keys is needed."""
    words = np.empty(len(key_hash), np.uint64)
    for at in range(0, len(words), _MIXED_AT_ONCE):
        words[at : at + _MIXED_AT_ONCE] = mix(
            key_hash[at : at + _MIXED_AT_ONCE] ^ np.uint64(seed_of_shard)
        )
    nth = np.zeros(1, np.int64) if earlier is None else earlier
    if not are_distinct and any_twice(key_hash):
        nth = nth + earlier_equal(key_hash)
    again = np.flatnonzero(nth)
    if len(again):
        words[again] = mix(words[again] ^ nth[again].astype(np.uint64))
    return words


class FileDigests:
    """Digests of a file for other programs: ``md5`` and ``sha256``, if they are in ``wanted``."""

    def __init__(self, wanted: Sequence[str]) -> None:
        self._states = {name: _DIGESTS[name](usedforsecurity=False) for name in wanted}

    def update(self, data: memoryview | bytes) -> None:
        """Add the next bytes."""
        for state in self._states.values():
            state.update(data)

    def text(self) -> str:
        """All digests in one text, for ``digest_in``."""
        return " ".join(f"{name}:{state.hexdigest()}" for name, state in self._states.items())


def digest_in(text: str, name: str) -> str:
    """The digest called ``name`` in a text of ``FileDigests``, in hexadecimal digits; "" if the
    text has no such digest."""
    pairs = (each.partition(":") for each in text.split(" "))
    return next((digest for kind, _, digest in pairs if kind == name), "")


_DIGESTS: Final = {"md5": hashlib.md5, "sha256": hashlib.sha256}


def md5_digests(keys: Iterable[bytes]) -> tuple[UInt64s, BytesColumn]:
    """The MD5 digest of each key: its first 8 bytes as a big-endian number, and its last 8 bytes.

    The digests are for an order that other programs can reproduce, not for security.
    """
    digests = [hashlib.md5(key, usedforsecurity=False).digest() for key in keys]
    whole = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 16)
    first = np.ascontiguousarray(whole[:, :8]).view(">u8").astype(np.uint64).reshape(-1)
    rest = np.ascontiguousarray(whole[:, 8:]).reshape(-1)
    return first, BytesColumn(np.arange(0, 8 * len(digests) + 1, 8, dtype=np.int64), rest)


ROUNDS: Final = 16
_HALF: Final = np.uint64(32)


# A permutation of numbers that depends on a seed: defined here once, independent of any library.
#
# Each number below ``total`` is a place, with a row and a column, in a table that has about as many
# rows as columns. In each of 16 rounds, the row or the column is shifted cyclically by a hash of
# the other one (a Feistel network over a table that need not be square). The table has fewer spare
# places than rows; a number that lands on a spare place goes through all rounds again. Before the
# rounds, the first two places are swapped or not: for some tables, rounds alone give only even
# permutations. Each permutation of up to 7 numbers is as likely as any other.
def permuted(numbers: Int64s, totals: Int64s, seeds: UInt64s) -> Int64s:
    """The place of each number, from 0 on; it is below the total of the number. All shapes are
    ``(n,)``. For one total and one seed, this is a permutation. Totals are below 2**53. About 0.2
    µs a number."""
    rows = np.sqrt(totals.astype(np.float64)).astype(np.int64)
    rows += rows * rows < totals
    columns = -(-totals // np.maximum(rows, 1))
    places = numbers.copy()
    left = np.arange(len(numbers))
    while len(left):
        moved = _moved(places[left], rows[left], columns[left], seeds[left])
        places[left] = moved
        left = left[moved >= totals[left]]
    return places


def _moved(places: Int64s, rows: Int64s, columns: Int64s, seeds: UInt64s) -> Int64s:
    changed = (mix(seeds + np.uint64(ROUNDS)).view(np.int64) & 1) * (rows * columns > 1)
    row, column = np.divmod(np.where(places < 2, places ^ changed, places), columns)
    for number in range(ROUNDS):
        own = mix(seeds + np.uint64(number))
        if number % 2:
            column = (column + _drawn(own, row)) % columns
        else:
            row = (row + _drawn(own, column)) % rows
    found: Int64s = row * columns + column
    return found


def _drawn(seeds: UInt64s, numbers: Int64s) -> Int64s:
    """A hash of 32 bits for each number."""
    return (mix(seeds ^ numbers.view(np.uint64)) >> _HALF).astype(np.int64)
