"""What goes through the pipes between a worker and a process of user code: frames with lengths.

No pickle: counts and sizes are arrays of integers, names and payloads are bytes, and texts are
JSON. Records go in, members of a tar come out.
"""

from __future__ import annotations

import json
import os
import struct
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "ANSWER",
    "BEGUN",
    "FRAME",
    "PAGE",
    "PAGE_BYTES",
    "RESULTS",
    "Answer",
    "FrameHead",
    "Results",
    "Sample",
    "answer_pieces",
    "parse_results",
    "read_exactly",
    "read_json",
    "samples_of",
    "write_all",
    "write_json",
]

FRAME = struct.Struct("<QQIIQ")
"""Number of the frame, bytes of payload, records, members, bytes of names."""
ANSWER = struct.Struct("<IIQQ")
"""Kind, records that it is about, bytes of what is said of them, bytes of tar."""
BEGUN, RESULTS = 1, 2
PAGE = struct.Struct("<QQd")
"""Where a process is: number of the frame, record in it, since when (monotonic clock, in s; 0:
it waits)."""
PAGE_BYTES = 4096
PIECES_MAX = 512
NAMES = ("utf-8", "surrogateescape")


@dataclass(slots=True)
class Sample:
    """One record. ``members``: content by extension, without its dot; "" for a member without."""

    key: str
    members: dict[str, bytes]


@dataclass(frozen=True, slots=True)
class FrameHead:
    """The fixed part of a frame."""

    number: int
    payload_bytes: int
    records: int
    members: int
    names_bytes: int

    @property
    def rest_bytes(self) -> int:
        """What follows it: one flag a record, arrays, names, payload."""
        return self.records * 9 + self.members * 12 + self.names_bytes + self.payload_bytes


def samples_of(head: FrameHead, rest: bytearray) -> tuple[bytes, list[Sample]]:
    """(flags of the records: 1, if they are to be handed back as they are; the records)."""
    n, m, at = head.records, head.members, 0
    flags, at = bytes(rest[:n]), n
    counts, at = _integers("I", rest, at, n)
    key_bytes, at = _integers("I", rest, at, n)
    name_bytes, at = _integers("I", rest, at, m)
    sizes, at = _integers("Q", rest, at, m)
    names = bytes(rest[at : at + head.names_bytes])
    at += head.names_bytes
    view = memoryview(rest)
    samples, member, place = [], 0, 0
    for count, key_length in zip(counts, key_bytes, strict=True):
        key = names[place : place + key_length].decode(*NAMES)
        members = {}
        for row in range(member, member + count):
            end = place + name_bytes[row]
            extension = names[place + key_length + 1 : end].decode(*NAMES)
            members[extension] = bytes(view[at : at + sizes[row]])
            at += sizes[row]
            place = end
        member += count
        samples.append(Sample(key, members))
    return flags, samples


def _integers(code: str, data: bytearray, at: int, count: int) -> tuple[array[int], int]:
    found = array(code)
    end = at + count * found.itemsize
    found.frombytes(bytes(data[at:end]))
    return found, end


@dataclass(slots=True)
class Answer:
    """Results of some records, as they are gathered: how many records each became, and what each
    of these has. ``errors``: (record, why it failed)."""

    counts: array[int] = field(default_factory=lambda: array("I"))
    members: array[int] = field(default_factory=lambda: array("I"))
    key_bytes: array[int] = field(default_factory=lambda: array("I"))
    errors: list[tuple[int, str]] = field(default_factory=list)
    tar: list[bytes] = field(default_factory=list)
    tar_bytes: int = 0


def answer_pieces(answer: Answer) -> list[bytes]:
    """The message that says ``answer``."""
    errors = json.dumps(answer.errors).encode() if answer.errors else b""
    said = b"".join(
        (
            answer.counts.tobytes(),
            len(answer.members).to_bytes(4, "little"),
            answer.members.tobytes(),
            answer.key_bytes.tobytes(),
            errors,
        )
    )
    head = ANSWER.pack(RESULTS, len(answer.counts), len(said), answer.tar_bytes)
    return [head, said, *answer.tar]


@dataclass(frozen=True, slots=True)
class Results:
    """What became of ``len(counts)`` records: ``counts`` of records, whose numbers of members and
    bytes of key follow each other in ``members`` and ``key_bytes``, and whose members are in
    ``tar``. ``errors``: by record, why it failed."""

    counts: Sequence[int]
    members: Sequence[int]
    key_bytes: Sequence[int]
    errors: Mapping[int, str]
    tar: bytes | bytearray


def parse_results(records: int, said: bytes, tar: bytes | bytearray) -> Results:
    """What an answer says. ``ValueError`` if it does not fit together."""
    counts, at = _integers("I", bytearray(said), 0, records)
    found = int.from_bytes(said[at : at + 4], "little")
    members, at = _integers("I", bytearray(said), at + 4, found)
    key_bytes, at = _integers("I", bytearray(said), at, found)
    errors = {}
    if len(said) > at:
        for record, text in json.loads(said[at:]):
            errors[int(record)] = str(text)
    if sum(counts) != found or len(counts) != records or len(key_bytes) != found:
        raise ValueError("a process of user code gave results that do not add up")
    return Results(counts, members, key_bytes, errors, tar)


def read_exactly(descriptor: int, size_bytes: int) -> bytearray:
    """So many bytes. ``EOFError`` if there are no more before."""
    data = bytearray(size_bytes)
    view, at = memoryview(data), 0
    while at < size_bytes:
        got = os.readv(descriptor, [view[at:]])
        if not got:
            raise EOFError
        at += got
    return data


def read_json(descriptor: int) -> Any:
    """What ``write_json`` has written."""
    size = int.from_bytes(read_exactly(descriptor, 8), "little")
    return json.loads(bytes(read_exactly(descriptor, size)))


def write_json(descriptor: int, value: object) -> None:
    """A value in JSON types."""
    data = json.dumps(value).encode()
    write_all(descriptor, [len(data).to_bytes(8, "little"), data])


def write_all(descriptor: int, pieces: Sequence[bytes]) -> None:
    """All ``pieces``, one after the other."""
    for first in range(0, len(pieces), PIECES_MAX):
        some: list[bytes | memoryview] = list(pieces[first : first + PIECES_MAX])
        left = sum(map(len, some))
        while left:
            written = os.writev(descriptor, some)
            left -= written
            while some and written >= len(some[0]):
                written -= len(some.pop(0))
            if written:
                some[0] = memoryview(some[0])[written:]
