"""Headers read many at a time: words that differ among them, and words that do not."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from dsort.containers.tar.fields import HeaderFields
from dsort.containers.tar.header import odd_numbers, parse_header
from tests.support.tar_builder import END, checksum, header
from tests.support.tar_reading import as_plain, scan, scan_by_the_book

COUNT = 70
"""More than are compared at once."""
RANDOM = random.Random(7)


def _text(length: int) -> bytes:
    return bytes(RANDOM.randrange(1, 256) for _ in range(length))


def _with_junk(name: bytes) -> bytes:
    """A header whose name field goes on behind its end."""
    block = header(name)
    return checksum(name + b"\0" + _text(99 - len(name)) + block[100:])


KINDS: dict[str, Callable[[int], bytes]] = {
    "all alike": lambda number: header(b"a.jpg", 0),
    "names of one length": lambda number: header(b"%07d.jpg" % number, 512 * number),
    "names that end with a word": lambda number: header(b"%04d.jpg" % number, number),
    "names of all lengths": lambda number: header(_text(number + 1).replace(b"/", b"_")),
    "names that fill the field": lambda number: header(b"%0100d" % number, number),
    "names with junk behind them": lambda number: _with_junk(b"%05d.jpg" % number),
    "no names": lambda number: header(b"", number),
    "prefixes, which are read": lambda number: header(b"%d.jpg" % number, prefix=_text(155)),
    "prefixes, which are not": lambda number: header(
        b"%d" % number, tail=(b"%d/.." % number) * (number % 3), style="gnu"
    ),
    "times": lambda number: header(b"a", mtime=RANDOM.randrange(1 << 33)),
    "modes": lambda number: header(b"a", mode=number),
    "large": lambda number: header(b"a.bin", number << 20),
    "checksums that are wrong": lambda number: (
        header(b"%d" % (number + 10))[:511] + bytes([number % 5])
    ),
    "sizes that are odd": lambda number: header(
        b"a", [b"%011o\0" % number, b"%010o \0" % number, b"\x80" + bytes(11)][number % 3]
    ),
    "all words": lambda number: checksum(
        _text(100)
        + header(b"", number)[100:157]
        + _text(100)
        + header(b"")[257:265]
        + _text(64)
        + b"0000000\0" * 2
        + _text(167)
    ),
}

ODD = {"checksums that are wrong": 5, "sizes that are odd": 3}
"""Of so many headers, one is plain."""


@pytest.mark.parametrize("kind", KINDS)
def test_many_headers_are_read_as_one_by_one(kind: str) -> None:
    blocks = [KINDS[kind](number) for number in range(COUNT)]
    words = np.frombuffer(b"".join(blocks), "<u8").reshape(COUNT, 64).copy()
    fields = HeaderFields(words)
    sizes, plain = fields.sizes()
    names = fields.names(COUNT).tolist()
    assert (plain == (np.arange(COUNT) % ODD.get(kind, 1) == 0)).all()
    for number in np.flatnonzero(plain).tolist():
        alone = parse_header("s.tar", 0, blocks[number])
        assert (alone.name, alone.size_bytes) == (names[number], int(sizes[number]))
        assert int(np.resize(fields.typeflags(), COUNT)[number]) == alone.typeflag[0]
        numbers_are_plain = bool(np.resize(fields.plain_numbers(), COUNT)[number])
        assert numbers_are_plain is not odd_numbers(blocks[number])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ODD])
def test_a_shard_of_them_is_read_as_by_the_book(kind: str) -> None:
    payloads = [parse_header("s.tar", 0, KINDS[kind](number)) for number in range(COUNT)]
    data = b"".join(
        each.block + bytes(-(-each.size_bytes // 512) * 512)
        for each in payloads
        if each.size_bytes < 1 << 20
    )
    assert as_plain(scan("s.tar", data + END)) == as_plain(scan_by_the_book(data + END))


def test_names_are_copies_of_what_is_overwritten_next() -> None:
    for count in (1, 2):
        blocks = b"".join(header(b"%07d.jpg" % number) for number in range(count))
        words = np.frombuffer(blocks, "<u8").reshape(count, 64).copy()
        names = HeaderFields(words).names(count)
        words[:] = 0
        assert names.tolist() == [b"%07d.jpg" % number for number in range(count)]
