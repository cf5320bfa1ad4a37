"""The law of turns at looking into shards: clients get them one after the other, no client has all
of them, and a turn is never lost."""

from __future__ import annotations

import asyncio
import random
import types
from collections.abc import Awaitable, Callable, Generator

import pytest

from dsort.errors import TooManyRequestsError
from dsort.service.objects import processes
from dsort.service.objects.processes import RUNNING_MAX, WAITING_MAX, Turns


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


def test_clients_that_wait_get_turns_one_after_the_other() -> None:
    async def test() -> None:
        turns, begun = Turns(), list[str]()
        looks = [Look(turns, client, begun) for client in ("ann", "ben") for _ in range(6)]
        await settled()
        order = [looks[0], looks[1], looks[6]]  # which begin at once
        for number in range(len(looks)):
            await order[number].end()
            await settled()
            order += [each for each in looks if each.has_turn and each not in order]
        assert "".join(each[0] for each in begun) == "aabababababb"

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
