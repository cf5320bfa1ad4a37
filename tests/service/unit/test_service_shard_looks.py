"""Looks into shards: members by ranges; headers that are read once; limits of memory; and turns,
which clients get one after the other."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import os
import random
import subprocess
import sys
import tarfile
import types
from collections.abc import Awaitable, Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from dsort.errors import TooManyRequestsError
from dsort.service.objects import processes
from dsort.service.objects.processes import RUNNING_MAX, WAITING_MAX, Turns
from dsort.service.security.tokens import VIEWER
from tests.support.service_here import ServiceHere, service_here

SOUND = b"RIFF\x24\0\0\0WAVEfmt " + bytes(range(256)) * 20_000  # 5 MB
LONG_BYTES = 70 << 20
SHARD = "/v1/members/sounds/s.tar"
SOUND_AT = {"number": 0, "member": 0}
PIECE_BYTES = 4 << 20


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceHere]:
    with service_here(tmp_path_factory.mktemp("ranges"), no_auth=False) as opened:
        sounds = opened.service.config.run.root / "sounds"
        sounds.mkdir()
        write_tar(sounds / "s.tar", {"0001.wav": SOUND, "0001.txt": b"a text", "0002.bin": b""})
        small = io.BytesIO()
        with tarfile.open(fileobj=small, mode="w") as archive:
            archive.addfile(entry("0001.wav", len(SOUND)), io.BytesIO(SOUND))
        (sounds / "s.tar.gz").write_bytes(gzip.compress(small.getvalue(), 1))
        with (sounds / "long.tar").open("wb") as file:  # a hole: the test does not write 70 MiB
            file.write(entry("0001.wav", LONG_BYTES).tobuf())
            file.write(SOUND)
            file.truncate(512 + LONG_BYTES + 1024)
        token = opened.service.tokens.add("vera", VIEWER, [str(sounds)], [])
        opened.client.headers["Authorization"] = f"Bearer {token}"
        yield opened


def entry(name: str, size_bytes: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size = size_bytes
    return info


def write_tar(path: Path, files: dict[str, bytes]) -> None:
    with tarfile.open(path, mode="w") as archive:
        for name, data in files.items():
            archive.addfile(entry(name, len(data)), io.BytesIO(data))


def kept(here: ServiceHere) -> set[Path]:
    return set((here.service.config.state_dir / "indexes").glob("*/*.col"))


def ranged(here: ServiceHere, text: str, path: str = SHARD, **more: str) -> Any:
    return here.client.get(path, params=SOUND_AT, headers={"Range": text, **more})


@pytest.mark.parametrize("path", [SHARD, f"{SHARD}.gz"])
def test_a_range_of_a_member_is_sent_and_no_more(here: ServiceHere, path: str) -> None:
    total = len(SOUND)
    for text, start, stop in (
        ("bytes=0-9", 0, 10),
        ("bytes=100000-100099", 100_000, 100_100),
        ("bytes=-7", total - 7, total),
        (f"bytes={total - 5}-{total + 5}", total - 5, total),
        ("bytes=0-", 0, PIECE_BYTES),  # the rest is asked for once it is wanted
    ):
        answer = ranged(here, text, path)
        assert (answer.status_code, answer.content) == (206, SOUND[start:stop]), text
        assert answer.headers["Content-Range"] == f"bytes {start}-{stop - 1}/{total}"
        assert answer.headers["Accept-Ranges"] == "bytes"
        assert answer.headers["Content-Type"] == "application/octet-stream"
    beyond = ranged(here, f"bytes={total}-", path)
    assert (beyond.status_code, beyond.content) == (416, b"")
    assert beyond.headers["Content-Range"] == f"bytes */{total}"
    for odd in ("bytes=0-1,5-6", "lines=1-2"):
        assert (ranged(here, odd, path).status_code, len(ranged(here, odd, path).content)) == (
            200,
            total,
        )


def test_of_a_member_that_is_too_large_to_be_sent_whole_any_range_is(here: ServiceHere) -> None:
    path = "/v1/members/sounds/long.tar"
    assert here.client.get(path, params=SOUND_AT).status_code == 413
    last = ranged(here, "bytes=-3", path)
    assert (last.status_code, last.content) == (206, b"\0\0\0")
    assert ranged(here, "bytes=8-11", path).content == b"WAVE"


def test_headers_of_a_shard_are_read_once_until_it_changes(here: ServiceHere) -> None:
    path = here.service.config.run.root / "sounds" / "kept.tar"
    write_tar(path, {"0001.bin": bytes(2 << 20), "0002.bin": b"two"})
    listed = "/v1/records/sounds/kept.tar"
    before = kept(here)
    assert here.client.get(listed).json()["total"] == 2
    (index,) = kept(here) - before
    os.utime(index, ns=(0, 0))
    second = here.client.get("/v1/members/sounds/kept.tar", params={"number": 1, "member": 0})
    assert (second.status_code, second.content) == (200, b"two")
    assert index.stat().st_mtime_ns > 0  # it was read
    write_tar(path, {"0003.bin": bytes(2 << 20)})
    assert [each["key"] for each in here.client.get(listed).json()["records"]] == ["0003"]
    assert len(kept(here) - before) == 2
    (another,) = kept(here) - before - {index}
    another.write_bytes(index.read_bytes())  # of another: its records are not in this shard
    assert here.client.get(listed).status_code < 500


LOOKS = """
import os, sys
from pathlib import Path
from dsort.service.objects import shard_main

def look(directory, order):
    shard_main.limit_memory()
    bytearray(order["bytes"])

reads, writes = os.pipe()
if os.fork() == 0:
    os._exit(shard_main._done({"records": look}, Path(sys.argv[1]), writes, parent=os.getppid()))
os.close(writes)
os.wait()
sys.stdout.write(os.read(reads, 1 << 16).decode().partition("\\n")[2])
"""


@pytest.mark.parametrize(("mebibytes", "status"), [(256, None), (1024, 413)])
def test_a_look_that_takes_more_memory_than_a_reader_may_is_refused(
    mebibytes: int, status: int | None, tmp_path: Path
) -> None:
    order = {"look": "records", "bytes": mebibytes << 20}
    (tmp_path / "order.json").write_text(json.dumps(order))
    command = [sys.executable, "-c", LOOKS, str(tmp_path)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    problem = json.loads(answer.stdout).get("problem", {})
    assert problem.get("status") == status, problem


class Look:
    """A request, which keeps its turn until the test ends it. ``begun``: who got turns."""

    def __init__(self, turns: Turns, client: str, begun: list[str]) -> None:
        self.may_end = asyncio.Event()
        self.client = client
        self.has_turn = False
        self.task = asyncio.create_task(self._run(turns, begun))

    async def _run(self, turns: Turns, begun: list[str]) -> None:
        async with turns.one(self.client):
            begun.append(self.client)
            self.has_turn = True
            try:
                await self.may_end.wait()
            finally:
                self.has_turn = False

    async def end(self) -> None:
        self.may_end.set()
        await self.task


@types.coroutine
def step() -> Generator[None]:
    """Every task that can go on does so, once."""
    yield


async def settled() -> None:
    """All tasks have gone as far as they can."""
    for _ in range(20):
        await step()


def in_a_loop(test: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await test()

    asyncio.run(run())


def test_a_client_that_asks_for_all_turns_leaves_one_for_another() -> None:
    async def test() -> None:
        turns, begun = Turns(), list[str]()
        greedy = [Look(turns, "ann", begun) for _ in range(WAITING_MAX)]
        await settled()
        assert begun == ["ann"] * (RUNNING_MAX - 1)
        other = Look(turns, "ben", begun)
        await settled()
        assert begun[-1] == "ben"  # at once, though none of ann's looks has ended
        for each in (*greedy, other):
            await each.end()

    in_a_loop(test)


def test_clients_that_wait_get_turns_in_pairs() -> None:
    async def test() -> None:
        turns, begun = Turns(), list[str]()
        looks = [Look(turns, client, begun) for client in ("ann", "ben") for _ in range(6)]
        await settled()
        order = [looks[0], looks[1], looks[6]]  # which begin at once
        for number in range(len(looks)):
            await order[number].end()
            await settled()
            order += [each for each in looks if each.has_turn and each not in order]
        assert "".join(each[0] for each in begun) == "aabbaabbaabb"

    in_a_loop(test)


def test_a_client_has_so_many_requests_waiting_at_most() -> None:
    async def test() -> None:
        turns, begun = Turns(), list[str]()
        looks = [Look(turns, "ann", begun) for _ in range(RUNNING_MAX - 1 + WAITING_MAX)]
        await settled()
        with pytest.raises(TooManyRequestsError):
            async with turns.one("ann"):
                pass
        for each in looks:
            await each.end()

    in_a_loop(test)


def test_a_request_that_waits_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "WAIT_S_MAX", 0.01)

    async def test() -> None:
        turns, begun = Turns(), list[str]()
        held = [Look(turns, client, begun) for client in ("ann", "ben", "cid")]
        await settled()
        with pytest.raises(TooManyRequestsError):
            async with turns.one("ann"):
                pass
        for each in held:
            await each.end()
        async with turns.one("ann"):  # what was refused holds no turn
            pass

    in_a_loop(test)


def test_no_turn_is_lost_however_requests_end() -> None:
    seed = 7
    chance = random.Random(seed)

    async def test() -> None:
        turns, begun = Turns(), list[str]()
        looks: list[Look] = []
        for _ in range(1000):
            looks = [each for each in looks if not each.task.done()]
            if len(looks) > chance.randrange(WAITING_MAX):
                one = chance.choice(looks)
                one.may_end.set()
                if chance.random() < 0.5:
                    one.task.cancel()
            else:
                looks.append(Look(turns, chance.choice("abc"), begun))
            for _ in range(chance.randrange(3)):
                await step()
            assert sum(each.has_turn for each in looks) <= RUNNING_MAX, seed
        for each in looks:
            each.may_end.set()
        await asyncio.gather(*(each.task for each in looks), return_exceptions=True)
        free = [Look(turns, client, begun) for client in ("ann", "ann", "ben")]
        await settled()
        assert [each.has_turn for each in free] == [True] * RUNNING_MAX, seed
        for each in free:
            await each.end()

    in_a_loop(test)
