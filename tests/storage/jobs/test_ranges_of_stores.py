"""Jobs that read records of a store by range, as they write them: the same bytes, few requests, and
faults that name shard and record."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dsort.cli import summary
from dsort.errors import ChangedInputError, SpecError, StorageError
from dsort.retry import RetryPolicy
from dsort.storage.bucket import ObjectInfo
from dsort.storage.objects import Fetched
from dsort.storage.s3.client import S3Client
from tests.support.datasets import Member, Shard, files_of, write_shards
from tests.support.engine import run_local, spec_of
from tests.support.inline_runtime import Moved, plan_inline, run_inline
from tests.support.internals import Creator, Movement, probes, worker_setup
from tests.support.refusals import raises
from tests.support.seaweedfs import S3Server

KIB = 1 << 10
RECORDS = 18
RANGE = Moved("range", partitions=3, buffer_bytes=3 << 20, hops=False)
HOPS = Moved("range", partitions=3, buffer_bytes=3 << 20, hops=True)


class Shards:
    """Three shards in a directory, and in a bucket."""

    def __init__(self, root: Path, server: S3Server) -> None:
        self.root = root
        rng = random.Random(3)
        shards = {}
        for number in range(3):
            members = []
            for key in range(RECORDS // 3):
                size = 2048 * KIB if key == 3 else rng.randint(60 * KIB, 140 * KIB)
                members += [Member(f"{number}-{key}.jpg", rng.randbytes(size))]
                members += [Member(f"{number}-{key}.cls", b"%d" % (key % 3))]
            shards[f"in-{number}.tar"] = Shard(tuple(members))
        write_shards(root / "in", shards)
        self.bucket, self.client = server.new_bucket_name(), server.client()
        self.client.create_bucket(Bucket=self.bucket)
        for path in (root / "in").iterdir():
            self.put(path.name, path.read_bytes())

    def put(self, name: str, data: bytes) -> None:
        self.client.put_object(Bucket=self.bucket, Key=f"in/{name}", Body=data)

    def spec(self, **fields: Any) -> dict[str, Any]:
        common = {"algorithm": {"kind": "shuffle", "seed": 4}, "output_shard_records": 5}
        far = {"input_bck": f"s3://{self.bucket}/in", "output_bck": "far"}
        return spec_of(**{**common, **far, **fields})

    def wanted(self, **fields: Any) -> dict[str, str]:
        """What the same job makes of the files."""
        spec = {**self.spec(**fields), "input_bck": "in", "output_bck": "near"}
        run_inline(spec, self.root, Moved("map"), overwrite=True)
        return files_of(self.root / "near", "*")


@pytest.fixture
def shards(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shards:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint_url)
    return Shards(tmp_path, s3)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each shard was asked for."""
    made: Counter[str] = Counter()
    fetch = S3Client.fetch

    def counted(self: S3Client, name: str, *rest: Any) -> Fetched:
        made[name] += 1
        return fetch(self, name, *rest)

    monkeypatch.setattr(S3Client, "fetch", counted)
    return made


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize("moved", [RANGE, HOPS], ids=["streams", "hops"])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"transform": {"steps": [{"rekey": "z/{key}"}, {"filter": 'ext("cls") > 0'}]}},
        {"algorithm": {"kind": "content", "extension": ".cls", "content_key_type": "int"}},
    ],
    ids=["plain", "steps", "content"],
)
def test_the_bytes_are_those_that_files_give(
    fields: dict[str, Any], moved: Moved, shards: Shards
) -> None:
    wanted = shards.wanted(**fields)
    run_inline(shards.spec(**fields), shards.root, moved)
    assert files_of(shards.root / "far", "*") == wanted


@pytest.mark.exhaustive
def test_ranges_fit_in_small_buffers(shards: Shards) -> None:
    wanted = shards.wanted()
    for moved in (
        replace(RANGE, workers=2, buffer_bytes=256 * KIB, order_seed=5),
        replace(HOPS, workers=2, buffer_bytes=256 * KIB, order_seed=5),
    ):
        run_inline(shards.spec(), shards.root, moved, overwrite=True)
        assert files_of(shards.root / "far", "*") == wanted


def test_a_plan_says_how_many_requests_that_takes(shards: Shards, asked: Counter[str]) -> None:
    planned = plan_inline(shards.spec(), shards.root, HOPS).plan.estimate
    assert planned
    headers = asked.total()
    assert RECORDS <= headers <= 2 * RECORDS + 3
    asked.clear()
    run_inline(shards.spec(), shards.root, HOPS)
    assert headers < asked.total() <= planned.requests["get"] <= 4 * RECORDS
    assert planned.requests["get"] <= 1.5 * asked.total()
    assert any("get" in text for _, text in summary.estimate_lines(planned))


def test_neighbours_come_by_one_request(shards: Shards, asked: Counter[str]) -> None:
    moved = replace(RANGE, buffer_bytes=32 << 20, partitions=1)
    run_inline(shards.spec(algorithm={"kind": "none"}), shards.root, moved)
    # A stream for headers; a range for each of four outputs, one more where two shards meet.
    assert 3 + 4 <= asked.total() <= 3 + 4 + 2


def test_a_shard_that_changes_is_named_with_its_record(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = Creator.create

    def changed(self: Creator, task: Any) -> Any:
        whole = (shards.root / "in" / "in-1.tar").read_bytes()
        shards.put("in-1.tar", whole[:-1] + b"\1")
        return create(self, task)

    monkeypatch.setattr(Creator, "create", changed)
    with raises(ChangedInputError, "shard in-1.tar"):
        run_inline(shards.spec(), shards.root, HOPS)
    assert not files_of(shards.root / "far", "*")


class _Cut:
    """A body that ends after half of it."""

    def __init__(self, fetched: Fetched, size_bytes: int) -> None:
        self._stream = fetched.stream
        self._left = size_bytes // 2

    def read_into(self, view: memoryview) -> int:
        got = self._stream.read_into(view[: self._left]) if self._left else 0
        self._left -= got
        return got

    def close(self) -> None:
        self._stream.close()


@pytest.mark.parametrize("heals", [True, False])
def test_a_reply_that_is_cut_short_is_asked_for_again(
    heals: bool, shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = shards.wanted()
    fetch, struck = S3Client.fetch, Counter[tuple[str, int]]()

    def cut(
        self: S3Client, name: str, start: int, stop: int | None, pinned: ObjectInfo | None
    ) -> Fetched:
        fetched = fetch(self, name, start, stop, pinned)
        is_payload = stop is not None and stop - start > 50 * KIB
        if not is_payload or name != "in-2.tar" or (heals and struck[name, stop or 0]):
            return fetched
        struck[name, stop or 0] += 1
        return Fetched(fetched.info, _Cut(fetched, (stop or 0) - start))

    monkeypatch.setattr(S3Client, "fetch", cut)
    again = RetryPolicy(tries_max=3, sleep=lambda _: None)
    monkeypatch.setattr("dsort.storage.open.retry_policy", lambda *_, **__: again)
    if heals:
        run_inline(shards.spec(), shards.root, HOPS)
        assert files_of(shards.root / "far", "*") == wanted
    else:
        with raises(StorageError, "shard in-2.tar"):
            run_inline(shards.spec(), shards.root, HOPS)
    assert struck


def test_a_whole_command_reads_by_range(shards: Shards) -> None:
    wanted = shards.wanted()
    report = run_local(shards.root, shards.spec(), move="range")
    assert report.run.move == "range"
    assert files_of(shards.root / "far", "*") == wanted
    mixed = {"name": "b", "input_bck": "in", "input_format": {"template": "in-{0..2}"}}
    stored = {
        "name": "a",
        "input_bck": f"s3://{shards.bucket}/in",
        "input_format": {"template": "in-{0..2}"},
    }
    spec = {**shards.spec(), "inputs": [stored, mixed], "output_bck": "mixed"}
    spec = {k: v for k, v in spec.items() if k not in ("input_bck", "input_format")}
    with raises(SpecError, "range"):
        run_local(shards.root, spec, move="range")


@pytest.mark.parametrize(
    ("far_bytes", "memory", "free", "way"),
    [
        (50 * KIB, 1 << 20, 1 << 40, "range"),  # spill would go to the disk
        (50 * KIB, 1 << 40, 1 << 40, "spill"),
        (1 << 40, 1 << 20, 1 << 40, "spill"),
        (1 << 40, 1 << 40, 0, "range"),  # no scratch
    ],
)
def test_large_records_come_by_range_if_they_would_go_through_the_disk(
    far_bytes: int,
    memory: int,
    free: int,
    way: str,
    shards: Shards,
    asked: Counter[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probes, "FAR_RECORD_BYTES_MIN", far_bytes)
    monkeypatch.setattr(worker_setup, "SCRATCH_SHARE", (1 << 40) // memory)
    monkeypatch.setattr(worker_setup, "scratch_free", lambda _: free)
    chosen: list[Movement] = []
    choose = worker_setup.choose_movement

    def noted(*given: Any, **named: Any) -> Movement:
        chosen.append(choose(*given, **named))
        return chosen[-1]

    monkeypatch.setattr(worker_setup, "choose_movement", noted)
    plan_inline(shards.spec(), shards.root, Moved("spill"))
    assert chosen[0].way.name == way
    if way == "range":
        assert "take a request each" in chosen[0].reason
