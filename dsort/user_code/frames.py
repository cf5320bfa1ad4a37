"""The messages between a worker and a process of user code: frames with lengths.

There is no pickle: counts and sizes are arrays of integers, names and payloads are bytes, texts are
JSON. Descriptions of records go through a pipe, payload through shared memory. Results are members
of a tar; unchanged members come back only as their numbers.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from abc import ABC, abstractmethod
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dsort.naming.names import key_problem

FRAME = struct.Struct("<QQIIIQ")
"""The number of the frame, the size of the memory with its payload, the number of that memory, how
many records, how many members, the bytes of names."""
ANSWER = struct.Struct("<IIQQ")
"""The kind, how many records the answer covers, the bytes of their description, the bytes of the
tar."""
BEGUN, RESULTS = 1, 2
PAGE = struct.Struct("<QQd")
"""The place of a process: the number of the frame, the number of the record in it, and when that
record began (monotonic clock, in s; 0: no user code is running)."""
PAGE_BYTES = 4096
PIECES_MAX = 512
HANDED_BACK, MAY_NAME = 1, 2
"""Flags of a record: it is to be returned unchanged; its members may be named instead of sent."""
SAME = NEW = 0xFFFFFFFF
"""``SAME``, in place of how many records a record became: the record is unchanged. ``NEW``, in
place of the number of a member: the member is in the tar."""
NAMES = ("utf-8", "surrogateescape")


class Sample:  # no dataclass: its import takes longer than all others here
    """One record. ``members``: content by extension, without its dot; "" for a member without an
    extension."""

    __slots__ = ("key", "members")

    def __init__(self, key: str, members: dict[str, bytes]) -> None:
        self.key = key
        self.members = members


class FrameHead(NamedTuple):
    """The fixed part of a frame."""

    number: int
    memory_bytes: int
    memory: int
    records: int
    members: int
    names_bytes: int

    @property
    def rest_bytes(self) -> int:
        """The number of bytes that follow it: one flag for each record, arrays, names."""
        return self.records * 13 + 4 + self.members * 24 + self.names_bytes


def samples_of(
    head: FrameHead, rest: bytearray, payload: mmap.mmap
) -> tuple[bytes, list[Sample], list[int]]:
    """(flags of the records, the records, the number of the first member of each record)."""
    n, m, at = head.records, head.members, 0
    flags, at = bytes(rest[:n]), n
    firsts, at = _integers("I", rest, at, n + 1)
    key_starts, at = _integers("I", rest, at, n)
    key_ends, at = _integers("I", rest, at, n)
    extension_starts, at = _integers("I", rest, at, m)
    extension_ends, at = _integers("I", rest, at, m)
    starts, at = _integers("Q", rest, at, m)
    ends, at = _integers("Q", rest, at, m)
    names = rest[at : at + head.names_bytes]
    keys = _texts(names, key_starts, key_ends)
    extensions = _texts(names, extension_starts, extension_ends)
    contents = [payload[start:end] for start, end in zip(starts, ends, strict=True)]
    numbers = firsts.tolist()
    samples = [
        Sample(key, dict(zip(extensions[first:end], contents[first:end], strict=True)))
        for key, first, end in zip(keys, numbers, numbers[1:], strict=False)
    ]
    return flags, samples, numbers


def _texts(names: bytearray, starts: array[int], ends: array[int]) -> list[str]:
    """The texts in ``names`` from each of ``starts`` to its end."""
    if names.isascii():  # a byte is a character: a slice costs a third of decoding
        text = names.decode("ascii")
        return [text[start:end] for start, end in zip(starts, ends, strict=True)]
    return [names[start:end].decode(*NAMES) for start, end in zip(starts, ends, strict=True)]


def _integers(code: str, data: bytearray | bytes, at: int, count: int) -> tuple[array[int], int]:
    found = array(code)
    end = at + count * found.itemsize
    found.frombytes(memoryview(data)[at:end])
    return found, end


class Answer:
    """Results of some records while they are gathered: how many records each record became, and the
    members of the new records. Unchanged records (``SAME``) have no members here. ``named``: for
    each member of the new records, its number in the frame, or ``NEW``. ``errors``: (record, why it
    failed)."""

    __slots__ = ("counts", "errors", "key_bytes", "members", "named", "tar", "tar_bytes")

    def __init__(self) -> None:
        self.counts, self.members, self.key_bytes, self.named = (array("I") for _ in range(4))
        self.errors: list[tuple[int, str]] = []
        self.tar: list[bytes] = []
        self.tar_bytes = 0


def answer_pieces(answer: Answer) -> list[bytes]:
    """The message with ``answer``."""
    errors = json.dumps(answer.errors).encode() if answer.errors else b""
    said = b"".join(
        (
            answer.counts.tobytes(),
            len(answer.members).to_bytes(4, "little"),
            len(answer.named).to_bytes(4, "little"),
            answer.members.tobytes(),
            answer.key_bytes.tobytes(),
            answer.named.tobytes(),
            errors,
        )
    )
    head = ANSWER.pack(RESULTS, len(answer.counts), len(said), answer.tar_bytes)
    return [head, said, *answer.tar]


class Results(NamedTuple):
    """The results of some records: ``counts`` has, for each of them, the number of records that it
    became, or ``SAME``. For each new record, in order, ``members`` has the number of its members,
    and ``key_bytes`` the number of bytes of its key. The members of the new records are in ``tar``,
    or, if they are ``named``, in the given records. ``errors``: by record, why it failed."""

    counts: Sequence[int]
    members: Sequence[int]
    key_bytes: Sequence[int]
    errors: Mapping[int, str]
    tar: bytes | bytearray
    named: Sequence[int] = ()


def parse_results(records: int, said: bytes, tar: bytes | bytearray) -> Results:
    """The results in an answer. ``ValueError`` if its parts do not fit together."""
    counts, at = _integers("I", said, 0, records)
    found, named_count = (int.from_bytes(said[at + i : at + i + 4], "little") for i in (0, 4))
    members, at = _integers("I", said, at + 8, found)
    key_bytes, at = _integers("I", said, at, found)
    named, at = _integers("I", said, at, named_count)
    errors = {}
    if len(said) > at:
        for record, text in json.loads(said[at:]):
            errors[int(record)] = str(text)
    # SAME is no count: such a record adds no new records.
    made = sum(counts) - counts.count(SAME) * SAME
    fits = len(counts) == records and len(key_bytes) == found and len(named) == named_count
    if made != found or sum(members) != named_count or not fits:
        raise ValueError("a process of user code gave results that do not add up")
    return Results(counts, members, key_bytes, errors, tar, named)


def read_exactly(descriptor: int, size_bytes: int) -> bytearray:
    """Read ``size_bytes`` bytes. ``EOFError`` if the input ends earlier."""
    data = bytearray(size_bytes)
    view, at = memoryview(data), 0
    while at < size_bytes:
        got = os.readv(descriptor, [view[at:]])
        if not got:
            raise EOFError
        at += got
    return data


def read_json(descriptor: int) -> Any:
    """Read a value that ``write_json`` wrote."""
    size = int.from_bytes(read_exactly(descriptor, 8), "little")
    return json.loads(bytes(read_exactly(descriptor, size)))


def write_json(descriptor: int, value: object) -> None:
    """Write a value of JSON types."""
    data = json.dumps(value).encode()
    write_all(descriptor, [len(data).to_bytes(8, "little"), data])


def write_all(descriptor: int, pieces: Sequence[bytes]) -> None:
    """Write all ``pieces``, one after the other."""
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


# --------------------------------------------------------------------------------------------------
# The contract of runners, which run in a process of user code, and the rules for their results.


Outcome = list[Sample] | str
"""The records that a record became, none to many; or why it failed."""

TEXT_MAX = 300


class BadResultError(ValueError):
    """User code returned a result that is no valid record."""


class Runner(ABC):
    """Does one step on records."""

    batch_size = 1
    """How many records a runner receives at a time, at most."""

    @abstractmethod
    def run(self, samples: Sequence[Sample]) -> list[Outcome]:
        """The outcome of each of ``samples``. Errors are texts of the outcomes."""

    def one(self, sample: Sample) -> Outcome:
        """The outcome of one record, if ``batch_size`` is 1."""
        return self.run([sample])[0]

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Release its resources."""

    def sources(self) -> dict[str, str]:
        """The hash of each file that defines its work, by a name that is the same on all
        machines."""
        return {}

    def description(self) -> dict[str, object]:
        """The properties that distinguish two runners whose results may differ, in JSON types."""
        return {}


def check_key(key: object) -> None:
    """``BadResultError`` unless a record can have this key."""
    if not isinstance(key, str):
        raise BadResultError(f"its __key__ is a {type(key).__name__}, and no text")
    problem = key_problem(key.encode(*NAMES)) if _is_name(key) else "is no text that a name can be"
    if problem:
        raise BadResultError(f"its key {said_briefly(repr(key))} {problem}")


def check_extension(extension: object) -> None:
    """``BadResultError`` unless a member can have this extension."""
    if not isinstance(extension, str):
        raise BadResultError(f"it has a member {said_briefly(repr(extension))}, which is no text")
    if (
        set(extension) & set("/\0\n\r")
        or extension.startswith(".")
        or not extension
        or not _is_name(extension)
    ):
        shown = said_briefly(repr(extension))
        raise BadResultError(f"it has a member {shown}, which is no extension: jpg, seg.png")


def _is_name(text: str) -> bool:
    try:
        text.encode(*NAMES)
    except UnicodeEncodeError:
        return False
    return True


def said_briefly(text: str) -> str:
    """``text`` in one line of bounded length."""
    line = " ".join(text.split())
    return line if len(line) <= TEXT_MAX else line[: TEXT_MAX - 1] + "…"
