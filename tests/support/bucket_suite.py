"""The law of every bucket: :class:`BucketSuite`, to be run over each implementation.

A test module subclasses it and gives a fixture ``bucket``: an empty bucket that exists.
"""

from __future__ import annotations

import contextlib
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dsort.errors import InvariantError, NamesTakenError, ObjectNotFoundError, StorageError
from dsort.storage.bucket import Bucket
from tests.support.refusals import raises

UNUSABLE_NAMES = ["", "/a", "a/", "a//b", ".", "..", "../a", "a/..", "a/../../b", "./a", "a\0b"]
TOKEN = ".dsort/job1/staged/0"


def stage(bucket: Bucket, name: str, *slices: bytes) -> str:
    """Stage an object as ``TOKEN``, to be published as ``name``. Returns the receipt."""
    with bucket.stage(TOKEN, name=name) as staged:
        staged.write_at(0, slices)
        return staged.finish()


def names_of(bucket: Bucket, prefix: str = "") -> list[str]:
    """The names that ``bucket`` lists."""
    return [info.name for info in bucket.list(prefix)]


class BucketSuite:
    """Laws of all buckets: directories, object stores and memory."""

    # --- objects -------------------------------------------------------------------------------

    def test_what_was_written_can_be_read(self, bucket: Bucket) -> None:
        bucket.write("train/a.json", b"one")
        bucket.write("train/empty", b"")
        assert bucket.read("train/a.json") == b"one"
        assert bucket.read("train/empty") == b""
        assert bucket.stat("train/a.json").size_bytes == 3
        assert bucket.stat("train/a.json").name == "train/a.json"

    def test_writing_again_replaces_and_changes_the_etag(self, bucket: Bucket) -> None:
        bucket.write("a", b"one")
        before = bucket.stat("a")
        assert bucket.stat("a") == before
        bucket.write("a", b"two")
        assert bucket.read("a") == b"two"
        assert bucket.stat("a").etag != before.etag

    def test_a_missing_object_is_not_found_by_any_door(self, bucket: Bucket) -> None:
        bucket.write("a/b", b"")
        for name in ("nothing", "a", "a/c", "a/b/c"):
            for door in (bucket.stat, bucket.open, bucket.read):
                with pytest.raises(ObjectNotFoundError, match=name):
                    door(name)

    def test_deleting_twice_is_no_error(self, bucket: Bucket) -> None:
        bucket.write("a/b", b"x")
        bucket.delete("a/b")
        bucket.delete("a/b")
        bucket.delete("never/was")
        assert names_of(bucket) == []

    @pytest.mark.parametrize("name", UNUSABLE_NAMES)
    def test_no_name_leads_out_of_the_bucket(self, bucket: Bucket, name: str) -> None:
        receipt = stage(bucket, "a")
        for use in (
            lambda: bucket.stat(name),
            lambda: bucket.open(name),
            lambda: bucket.read(name),
            lambda: bucket.write(name, b""),
            lambda: bucket.delete(name),
            lambda: bucket.local_path(name),
            lambda: bucket.publish(TOKEN, name, overwrite=True, receipt=receipt),
        ):
            with raises(StorageError, repr(name)):
                use()
        assert names_of(bucket) == []

    @pytest.mark.parametrize("prefix", ["/", "../", "a/../b", "./a", "a//b"])
    def test_no_prefix_leads_out_of_the_bucket(self, bucket: Bucket, prefix: str) -> None:
        with raises(StorageError, repr(prefix)):
            names_of(bucket, prefix)

    def test_only_the_first_of_all_writers_stores_something_new(self, bucket: Bucket) -> None:
        with ThreadPoolExecutor(8) as threads:
            won = list(
                threads.map(lambda number: bucket.write_new("a/b", b"%d" % number), range(8))
            )
        assert won.count(True) == 1
        assert bucket.read("a/b") == b"%d" % won.index(True)
        assert not bucket.write_new("a/b", b"late")
        bucket.delete("a/b")
        assert bucket.write_new("a/b", b"again")
        assert bucket.read("a/b") == b"again"

    def test_what_was_written_meanwhile_is_not_written_over(self, bucket: Bucket) -> None:
        assert not bucket.write_over("a/b", b"none is there", "etag")
        bucket.write("a/b", b"first")
        before = bucket.stat("a/b").etag
        assert bucket.write_over("a/b", b"second", before)
        assert not bucket.write_over("a/b", b"too late", before)
        assert bucket.read("a/b") == b"second"

    @pytest.mark.parametrize("count", [3, 250])
    def test_many_objects_are_found_at_once(self, bucket: Bucket, count: int) -> None:
        names = [f"train/a-{number}" for number in range(count)]
        for name in [*names[::2], "train/a", "train/b"]:
            bucket.write(name, b"x")
        found = bucket.stat_many(names)
        assert found == {name: bucket.stat(name) for name in names[::2]}
        assert bucket.stat_many([]) == {}

    # --- listing -------------------------------------------------------------------------------

    def test_listing_is_in_byte_order_of_utf8_names(self, bucket: Bucket) -> None:
        names = ["a-b", "a.tar", "a/b.tar", "a/b/c", "a0", "aé", "a\uffff", "a\U00010000"]
        names += ["B", "é/x", "z", "日本/語"]
        for name in random.Random(5).sample(names, len(names)):
            bucket.write(name, name.encode())
        assert names_of(bucket) == sorted(names, key=str.encode)
        assert [info.size_bytes for info in bucket.list()] == [
            len(name.encode()) for name in sorted(names, key=str.encode)
        ]
        assert all(info == bucket.stat(info.name) for info in bucket.list())

    @pytest.mark.parametrize(
        "prefix", ["", "t", "train", "train/", "train/a", "train/a/", "train/a/1", "x", "train/b/c"]
    )
    def test_a_prefix_is_of_the_whole_name(self, bucket: Bucket, prefix: str) -> None:
        names = ["t", "test/a", "train-1", "train.d/a/1", "val/train/a"]
        names += ["train/a/1", "train/a/12", "train/a1", "train/ab/1", "train/b"]
        for name in names:
            bucket.write(name, b"")
        wanted = sorted(name for name in names if name.startswith(prefix))
        assert names_of(bucket, prefix) == wanted

    def test_internal_objects_are_listed_only_on_request(self, bucket: Bucket) -> None:
        for name in (".dsort/job1/manifest.json", ".dsort2", ".d", "a/.dsort/b"):
            bucket.write(name, b"")
        assert names_of(bucket) == [".d", ".dsort2", "a/.dsort/b"]
        assert names_of(bucket, ".dsort") == [".dsort2"]
        assert names_of(bucket, ".dsort/") == [".dsort/job1/manifest.json"]
        assert names_of(bucket, ".dsort/job1/m") == [".dsort/job1/manifest.json"]

    # --- reading -------------------------------------------------------------------------------

    def test_ranges_are_read_whole_or_not_at_all(self, bucket: Bucket) -> None:
        data = random.Random(7).randbytes(10_000)
        bucket.write("a", data)
        with bucket.open("a") as opened:
            assert opened.info == bucket.stat("a")
            for offset, length in ((0, 10_000), (9_999, 1), (10_000, 0), (17, 4_000), (3, 0)):
                buffer = bytearray(length)
                opened.read_into(memoryview(buffer), offset)
                assert buffer == data[offset : offset + length]
            with raises(StorageError, "byte 10,000", "10,001"):
                opened.read_into(memoryview(bytearray(2)), 9_999)

    def test_a_mapping_is_the_object(self, bucket: Bucket) -> None:
        bucket.write("a", b"0123456789")
        bucket.write("empty", b"")
        with bucket.open("a") as opened, bucket.open("empty") as empty:
            view, nothing = opened.mapping(), empty.mapping()
            if view is None or nothing is None:
                assert bucket.local_path("a") is None
                pytest.skip("this bucket cannot be mapped")
            assert (bytes(view), bytes(nothing)) == (b"0123456789", b"")
            assert view.readonly
            part, array = view[3:5], np.frombuffer(view, np.uint8)
        assert bytes(part) == b"34"  # views in use outlive the object
        assert array.tobytes() == b"0123456789"

    # --- staging and publishing ----------------------------------------------------------------

    def test_a_staged_object_is_invisible_until_published(self, bucket: Bucket) -> None:
        with bucket.stage(TOKEN, name="deep/er/out.tar", size_bytes=6) as staged:
            staged.write_at(0, [b"abc", b"def"])
            staged.sync()
            assert staged.size_bytes() == 6
            receipt = staged.finish()
        assert names_of(bucket) == []
        bucket.publish(TOKEN, "deep/er/out.tar", overwrite=False, receipt=receipt)
        bucket.make_durable()
        assert names_of(bucket) == ["deep/er/out.tar"]
        assert bucket.read("deep/er/out.tar") == b"abcdef"
        assert names_of(bucket, ".dsort/") == []

    def test_reserving_room_does_not_change_the_length(self, bucket: Bucket) -> None:
        with bucket.stage(TOKEN, name="a", size_bytes=1 << 20) as staged:
            assert staged.size_bytes() == 0
            staged.write_at(0, [b"abc"])
            assert staged.size_bytes() == 3

    def test_ranges_may_come_in_any_order_and_twice(self, bucket: Bucket) -> None:
        if bucket.seals_on_finish:
            pytest.skip("objects of a store are written once, from the first byte to the last")
        data = random.Random(11).randbytes(50_000)
        pieces = list(range(0, len(data), 777))
        with bucket.stage(TOKEN, name="a") as one, bucket.stage(TOKEN, name="a") as other:
            for turn, start in enumerate(random.Random(3).sample(pieces * 2, 2 * len(pieces))):
                piece = memoryview(data)[start : start + 777]
                (one, other)[turn % 2].write_at(start, (piece[:100], piece[100:100], piece[100:]))
            assert one.size_bytes() == other.size_bytes() == len(data)
            back = bytearray(1000)
            other.read_into(memoryview(back), 49_000)
            assert back == data[49_000:]
            with raises(StorageError, "byte 50,000"):
                one.read_into(memoryview(back), 49_001)
            receipt = one.finish()
        bucket.publish(TOKEN, "a", overwrite=False, receipt=receipt)
        assert bucket.read("a") == data

    def test_a_store_takes_bytes_in_order_only_and_shows_them_when_published(
        self, bucket: Bucket
    ) -> None:
        if not bucket.seals_on_finish:
            pytest.skip("files take and show bytes in any order")
        with bucket.stage(TOKEN, name="a") as staged:
            staged.write_at(0, [b"abc"])
            for offset in (0, 2, 4):
                with pytest.raises(InvariantError):
                    staged.write_at(offset, [b"d"])
            staged.write_at(3, [b"d"])
            with pytest.raises(InvariantError):
                staged.read_into(memoryview(bytearray(1)), 0)
            receipt = staged.finish()
            with pytest.raises(InvariantError):
                staged.write_at(4, [b"e"])
            assert staged.finish() == receipt
        bucket.publish(TOKEN, "a", overwrite=False, receipt=receipt)
        assert bucket.read("a") == b"abcd"

    def test_many_and_empty_slices_are_written_whole(self, bucket: Bucket) -> None:
        slices = [bytes([number % 251]) * (number % 5) for number in range(5_000)]
        gap = 0 if bucket.seals_on_finish else 2
        with bucket.stage(TOKEN, name="a") as staged:
            staged.write_at(0, [])
            assert staged.size_bytes() == 0
            staged.write_at(gap, slices)
            receipt = staged.finish()
        bucket.publish(TOKEN, "a", overwrite=False, receipt=receipt)
        assert bucket.read("a") == bytes(gap) + b"".join(slices)

    def test_what_was_written_may_be_used_for_something_else(self, bucket: Bucket) -> None:
        buffer = bytearray(1 << 20)
        with bucket.stage(TOKEN, name="a") as staged:
            for number in range(7):
                buffer[:] = bytes([number]) * len(buffer)
                staged.write_at(number << 20, [memoryview(buffer)])
            buffer[:] = bytes(len(buffer))
            receipt = staged.finish()
        bucket.publish(TOKEN, "a", overwrite=False, receipt=receipt)
        assert bucket.read("a") == b"".join(bytes([number]) * (1 << 20) for number in range(7))

    def test_an_empty_object_can_be_staged(self, bucket: Bucket) -> None:
        receipt = stage(bucket, "a")
        bucket.publish(TOKEN, "a", overwrite=False, receipt=receipt)
        assert bucket.read("a") == b""

    def test_what_can_still_be_published_is_known(self, bucket: Bucket) -> None:
        other = ".dsort/job1/staged/1"
        receipt = stage(bucket, "a", b"abc")
        assert bucket.still_staged({TOKEN: ("a", receipt), other: ("b", "")}) == {TOKEN}
        bucket.discard(".dsort/job1/", names=["a"])
        assert bucket.still_staged({TOKEN: ("a", receipt), other: ("b", "")}) == set()

    def test_publishing_never_clobbers_unless_asked_to(self, bucket: Bucket) -> None:
        bucket.write("a", b"old")
        receipt = stage(bucket, "a", b"longer")
        with raises(NamesTakenError, "a in bucket"):
            bucket.publish(TOKEN, "a", overwrite=False, receipt=receipt)
        assert bucket.read("a") == b"old"
        bucket.publish(TOKEN, "a", overwrite=True, receipt=receipt)
        assert bucket.read("a") == b"longer"

    def test_publishing_what_is_not_staged_is_an_error(self, bucket: Bucket) -> None:
        for overwrite in (False, True):
            with pytest.raises(ObjectNotFoundError):
                bucket.publish(TOKEN, "a", overwrite=overwrite)
        assert names_of(bucket) == []

    def test_what_is_replaced_can_be_kept_and_put_back(self, bucket: Bucket) -> None:
        kept = ".dsort/job1/replaced/0"
        bucket.write("deep/a", b"old")
        bucket.create()
        receipt, aside = stage(bucket, "deep/a", b"longer"), bucket.keep_aside("deep/a", kept)
        assert aside
        assert bucket.keep_aside("deep/a", kept) == aside
        assert bucket.read("deep/a") == b"old"
        staged = {TOKEN: ("deep/a", receipt)}
        assert bucket.published(staged) == set()
        bucket.publish(TOKEN, "deep/a", overwrite=True, receipt=receipt)
        assert bucket.published(staged) == {TOKEN}
        assert bucket.read("deep/a") == b"longer"
        bucket.put_back(kept, "deep/a", receipt=aside)
        bucket.make_durable()
        assert bucket.read("deep/a") == b"old"
        assert names_of(bucket) == ["deep/a"]
        assert names_of(bucket, ".dsort/") == []
        with contextlib.suppress(ObjectNotFoundError):  # no error if a retry may be the cause
            bucket.put_back(kept, "deep/a", receipt=aside)
        assert bucket.read("deep/a") == b"old"

    def test_what_is_kept_is_put_back_where_nothing_is(self, bucket: Bucket) -> None:
        kept = ".dsort/job1/replaced/0"
        bucket.write("a", b"old")
        aside = bucket.keep_aside("a", kept)
        bucket.delete("a")
        bucket.put_back(kept, "a", receipt=aside)
        assert bucket.read("a") == b"old"

    def test_what_is_kept_may_be_discarded(self, bucket: Bucket) -> None:
        bucket.write("a", b"old")
        bucket.keep_aside("a", ".dsort/job1/replaced/0")
        bucket.discard(".dsort/job1/replaced/")
        assert bucket.read("a") == b"old"
        assert names_of(bucket, ".dsort/") == []

    def test_nothing_is_kept_of_what_is_not_there(self, bucket: Bucket) -> None:
        assert bucket.keep_aside("a", ".dsort/job1/replaced/0") == ""
        assert names_of(bucket, ".dsort/") == []

    @pytest.mark.parametrize("token", ["a", "dsort/a", ".dsort", ".dsortx/a", "a/.dsort/b"])
    def test_tokens_outside_the_internal_prefix_are_a_bug(self, bucket: Bucket, token: str) -> None:
        with pytest.raises(InvariantError):
            bucket.stage(token, name="a")
        with pytest.raises(InvariantError):
            bucket.publish(token, "b", overwrite=True)
        with pytest.raises(InvariantError):
            bucket.discard(token)

    # --- discarding ----------------------------------------------------------------------------

    def test_discard_removes_what_is_under_the_prefix_only(self, bucket: Bucket) -> None:
        bucket.write("train/a", b"")
        bucket.write(".dsort/job1/manifest.json", b"")
        bucket.write(".dsort/job2/manifest.json", b"")
        for token in (".dsort/job1/staged/0", ".dsort/job1/staged/x/1", ".dsort/job10/staged/0"):
            if bucket.seals_on_finish:  # a staged object is not listed before it is finished
                bucket.write(token, b"")
            else:
                bucket.stage(token, name="a").close()
        bucket.discard(".dsort/job1/staged/")
        left = [".dsort/job1/manifest.json", ".dsort/job10/staged/0", ".dsort/job2/manifest.json"]
        assert names_of(bucket, ".dsort/") == left
        bucket.discard(".dsort/job1/")
        assert names_of(bucket, ".dsort/") == left[1:]
        bucket.discard(".dsort/never-was/")
        bucket.discard(".dsort/")
        bucket.discard(".dsort/")
        assert names_of(bucket, ".dsort/") == []
        assert names_of(bucket) == ["train/a"]

    def test_discard_of_several_prefixes_leaves_what_is_beside_them(self, bucket: Bucket) -> None:
        receipt = stage(bucket, "a/b", b"x")
        kept, gone = [".dsort/job1/b", ".dsort/job2/a"], [".dsort/job1/a/1", ".dsort/job1/c"]
        for name in (*kept, *gone):
            bucket.write(name, b"")
        bucket.discard(TOKEN, ".dsort/job1/a/", ".dsort/job1/c", names=["a/b"])
        assert names_of(bucket, ".dsort/") == kept
        assert bucket.still_staged({TOKEN: ("a/b", receipt)}) == set()
        with pytest.raises(InvariantError):
            bucket.discard(".dsort/job1/", "train/")
        assert names_of(bucket, ".dsort/") == kept

    def test_discard_aborts_what_was_to_be_published(self, bucket: Bucket) -> None:
        receipt = stage(bucket, "a/b", b"x")
        bucket.discard(".dsort/job1/", names=["a/b", "a/c"])
        with pytest.raises(ObjectNotFoundError):
            bucket.publish(TOKEN, "a/b", overwrite=True, receipt=receipt)
        assert names_of(bucket) == names_of(bucket, ".dsort/") == []

    def test_discard_cannot_leave_the_internal_prefix(self, bucket: Bucket) -> None:
        bucket.write("a", b"")
        with raises(StorageError, "'.dsort/../'"):
            bucket.discard(".dsort/../")
        assert names_of(bucket) == ["a"]

    # --- the bucket ----------------------------------------------------------------------------

    def test_creating_an_existing_bucket_is_harmless(self, bucket: Bucket) -> None:
        bucket.write("a", b"x")
        bucket.create()
        assert bucket.exists()
        assert bucket.read("a") == b"x"

    def test_free_room_is_unknown_or_a_number(self, bucket: Bucket) -> None:
        free = bucket.free_bytes()
        assert free is None or free > 0
