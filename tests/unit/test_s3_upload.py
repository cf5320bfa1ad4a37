"""Sizes of parts, the buffers that uploads share, and what a receipt carries."""

from __future__ import annotations

import threading

import pytest

from dsort.errors import InvariantError
from dsort.storage.s3_upload import PartBuffers, Receipt, part_bytes_for

MIB = 1 << 20
TIB = 1 << 40


@pytest.mark.parametrize(
    ("size_bytes", "part_bytes"),
    [
        (None, 16 * MIB),
        (0, 16 * MIB),
        (160_000 * MIB, 16 * MIB),
        (160_000 * MIB + 1, 17 * MIB),
        (5 * TIB, 525 * MIB),
    ],
)
def test_parts_are_large_enough_for_ten_thousand_to_do(
    size_bytes: int | None, part_bytes: int
) -> None:
    assert part_bytes_for(size_bytes, 16 * MIB) == part_bytes
    assert (size_bytes or 0) <= 10_000 * part_bytes


def test_buffers_are_used_again_and_bounded_by_those_that_come_back() -> None:
    buffers = PartBuffers(10, 2)
    first, second = buffers.take(), buffers.take()
    buffers.uploading()
    taken: list[bytearray] = []
    waiting = threading.Thread(target=lambda: taken.append(buffers.take()))
    waiting.start()
    buffers.give_back(first, uploaded=True)
    waiting.join()
    assert taken[0] is first
    buffers.give_back(second, uploaded=False)
    assert buffers.take() is second


def test_uploads_that_each_fill_a_buffer_do_not_wait_for_each_other() -> None:
    buffers = PartBuffers(10, 2)
    held = [buffers.take() for _ in range(5)]
    assert len({id(each) for each in held}) == 5
    for each in held:
        buffers.give_back(each, uploaded=False)
    kept = [buffers.take(), buffers.take()]
    assert all(any(each is one for one in held) for each in kept)
    assert not any(buffers.take() is one for one in held), "more than two were kept"


def test_a_receipt_survives_being_text() -> None:
    receipt = Receipt("train/ü.tar", "id/1+", ('"a"', '"b"'), ("x=", "y="), 5, 1_700_000_000)
    assert Receipt.parse(receipt.text()) == receipt
    assert receipt.parts()[1] == {"PartNumber": 2, "ETag": '"b"', "ChecksumCRC32C": "y="}
    unchecked = receipt._replace(checksums=())
    assert Receipt.parse(unchecked.text()) == unchecked
    assert unchecked.parts()[1] == {"PartNumber": 2, "ETag": '"b"'}


@pytest.mark.parametrize("text", ["x", "{}", "[]", "null", '{"etags": [], "more": 1}'])
def test_what_is_no_receipt_is_a_bug(text: str) -> None:
    with pytest.raises(InvariantError, match="not a receipt"):
        Receipt.parse(text)
