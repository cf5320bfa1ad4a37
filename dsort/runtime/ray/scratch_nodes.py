"""All homes of a job on Ray, as the coordinator sees them: one agent on each node with workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dsort.errors import ScratchLostError
from dsort.runtime.ray.agent import node_of, seat_of
from dsort.runtime.ray.exchange import ANSWER_SECONDS_MAX, RayCalls, late_home, lost_home
from dsort.runtime.ray.messages import bug
from dsort.scratch.nodes import Request
from dsort.stopping import StopFlag

__all__ = ["RayHomes"]

TICK_S = 0.1
CLOSE_SECONDS_MAX = 30

Launch = Callable[[str, str], Any]
"""Starts the agent of (node id, seat)."""


@dataclass(slots=True, eq=False)
class _Agent:
    """``told``: reference to its home and what is wrong with it; ``home``: "" until it is known."""

    actor: Any
    seat: str
    told: Any
    home: str = ""


class RayHomes:
    """Agents by node. ``on_lost`` is told the node of a home that is used no more."""

    def __init__(self, launch: Launch, calls: RayCalls, stop: StopFlag) -> None:
        self._launch = launch
        self._calls = calls
        self._stop = stop
        self.on_lost: Callable[[str], None] = lambda node_id: None
        self._agents: dict[str, _Agent] = {}
        self._losses: dict[str, int] = {}
        self._files: dict[str, Any] = {}

    def __len__(self) -> int:
        return len(self._agents)

    def told(self, node_id: str) -> Any:
        """Reference to what the agent of a node says of its home; it is started if there is
        none."""
        agent = self._agents.get(node_id)
        if agent is None:
            losses = self._losses.get(node_id, 0)
            seat = f"{node_id}-{losses}" if losses else node_id
            actor = self._launch(node_id, seat)
            told = actor.open.remote(list(self._files), *self._files.values())
            agent = self._agents[node_id] = _Agent(actor, seat, told)
        return agent.told

    def wait(self) -> None:
        """Wait for all homes. Raises why there can be none on some node."""
        for agent in list(self._agents.values()):
            try:
                agent.home, error = self._take(agent, agent.told)
            except ScratchLostError:
                continue
            if error is not None:
                raise error

    def home_on(self, node_id: str) -> str:
        """The home on a node, "" if it is not there (yet)."""
        agent = self._agents.get(node_id)
        if agent is None:
            return ""
        if not agent.home and self._calls.wait([agent.told], timeout=0)[0]:
            try:
                agent.home, _ = self._calls.get(agent.told)
            except self._calls.failed:
                self._forget(agent)
        return agent.home

    def homes(self) -> tuple[str, ...]:
        """See :class:`~dsort.runtime.base.Runtime`."""
        alive = {node["NodeID"] for node in self._calls.nodes() if node["Alive"]}
        for node_id, agent in list(self._agents.items()):
            if node_id not in alive:
                self._forget(agent)
        return tuple(filter(None, map(self.home_on, list(self._agents))))

    def share(self, name: str, data: bytes) -> None:
        """See :class:`~dsort.runtime.base.Runtime`. Agents that are still starting take it next."""
        shared = self._files[name] = self._calls.put(data)
        agents = list(self._agents.values())
        stored = [agent.actor.store.remote(name, shared) for agent in agents]
        for agent, reference in zip(agents, stored, strict=True):
            try:
                error = self._take(agent, reference)
            except ScratchLostError:
                continue
            if error is not None:
                raise error

    def ask(self, home: str, request: Request) -> Any:
        """See :class:`~dsort.runtime.base.Runtime`."""
        agent = self._find(home)
        if agent is None:
            raise lost_home(home)
        answer, error = self._take(agent, agent.actor.answer.remote(home, request))
        if error is not None:
            raise error
        return answer

    def tell(self, home: str, request: Request) -> None:
        """See :class:`~dsort.runtime.base.Runtime`."""
        agent = self._find(home)
        if agent is not None:
            agent.actor.answer.remote(home, request)

    def lose(self, home: str) -> None:
        """``home`` is used no more, even if it was there: somebody could not reach it, and what it
        has is made again. Another one is made on its node if that is there."""
        agent = self._find(home)
        if agent is not None:
            self._forget(agent)

    def close(self, workers: Mapping[str, Sequence[int]], *, keep: bool) -> None:
        """End all agents, and remove their homes unless ``keep``. ``workers``: process ids by node,
        which were told to end."""
        agents, self._agents = self._agents, {}
        ends = [
            agent.actor.close.remote(list(workers.get(node_id, ())), keep)
            for node_id, agent in agents.items()
        ]
        if ends:
            self._calls.wait(ends, num_returns=len(ends), timeout=CLOSE_SECONDS_MAX)
        for agent in agents.values():
            self._calls.kill(agent.actor)

    def _find(self, home: str) -> _Agent | None:
        seat = seat_of(home)
        agent = self._agents.get(node_of(seat))
        return agent if agent is not None and agent.seat == seat else None

    def _forget(self, agent: _Agent) -> None:
        node_id = node_of(agent.seat)
        if self._agents.get(node_id) is agent:
            del self._agents[node_id]
            self._losses[node_id] = self._losses.get(node_id, 0) + 1
            self._calls.kill(agent.actor)
            self.on_lost(node_id)

    def _take(self, agent: _Agent, reference: Any) -> Any:
        """What ``agent`` answers; ``ScratchLostError`` if it is lost."""
        end_s = time.monotonic() + ANSWER_SECONDS_MAX
        while True:
            self._stop.raise_if_requested()
            if self._calls.wait([reference], timeout=TICK_S)[0]:
                break
            if time.monotonic() > end_s:
                raise late_home(agent.seat)
        try:
            return self._calls.get(reference)
        except self._calls.lost as lost:
            if getattr(lost, "actor_init_failed", False):
                raise bug(lost, f"the agent of node {node_of(agent.seat)}") from lost
            self._forget(agent)
            raise lost_home(agent.home or f"@{agent.seat}") from lost
        except self._calls.raised as raised:
            raise bug(raised, f"the agent of node {node_of(agent.seat)}") from raised
