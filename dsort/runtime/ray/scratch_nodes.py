"""The scratch nodes of a job on Ray: on each node with workers an agent holds the scratch directory
and answers requests for what is in it, from the coordinator and from workers of other nodes.

Ids are made here, so that whoever knows the id of a scratch node finds its agent:

``seat``     ``<node id>``, or ``<node id>-<n>`` for the home that was made after ``n`` were lost
             there. The name of its directory in the job's scratch directory.
``home id``  ``<token>@<seat>``; the token is in the directory.
``agent``    ``dsort-<job id>-<attempt>-<seat>``, in Ray's namespace ``dsort``. ``attempt`` is
             another for each runtime: the agents of a coordinator that died may still be there.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from dsort.errors import DsortError, InvariantError, ScratchLostError, WorkerLostError
from dsort.runtime.base import reply
from dsort.runtime.ray.library import LOST_ERRORS, GetTimeoutError, RayError, RayTaskError, ray
from dsort.runtime.ray.messages import bug, first_line, located, node_words
from dsort.scratch.index import IndexStore
from dsort.scratch.nodes import Request, make_home, open_home
from dsort.stopping import StopFlag

__all__ = [
    "AGENT_THREADS",
    "ANSWER_SECONDS_MAX",
    "NAMESPACE",
    "NodeAgent",
    "RayExchange",
    "RayHomes",
    "agent_name",
    "late_home",
    "lost_home",
    "node_of",
    "remove_scratch",
    "seat_of",
    "token_of",
]

NAMESPACE = "dsort"
AGENT_THREADS = 4
"""So many questions are answered at the same time; each may be 16 MiB of payload."""

WORKERS_END_SECONDS_MAX = 5


def agent_name(prefix: str, seat: str) -> str:
    """The agent that has ``seat``; ``prefix``: job and attempt."""
    return f"dsort-{prefix}-{seat}"


def node_of(seat: str) -> str:
    """The node id of a seat."""
    return seat.partition("-")[0]


def seat_of(home: str) -> str:
    """The seat of a home, by its id."""
    return home.rpartition("@")[2]


def token_of(home: str) -> str:
    """What tells the directory of a home from any other at its seat."""
    return home.rpartition("@")[0]


class NodeAgent:
    """The home at ``seat`` of the job's ``scratch`` directory, and who answers for it.

    Ray may make it again, in a new process in place of one that died. ``address``: what errors name
    the node by; None: there is no other.
    """

    def __init__(
        self, scratch: str, seat: str, owner: Mapping[str, str], address: str | None
    ) -> None:
        node_id = node_of(seat)
        node = node_words(socket.gethostname(), address, node_id) if address else ""
        self._where = f"node {node}" if node else ""
        self._directory = Path(scratch) / seat
        self._store: IndexStore | None = None
        self._home = ""
        self._error: DsortError | None = None
        for other in self._directory.parent.glob(f"{node_id}*"):
            if other != self._directory:  # lost: what was in it is made again
                shutil.rmtree(other, ignore_errors=True)
        try:
            token = make_home(self._directory, owner)
            self._store = IndexStore(open_home(self._directory, token))
            self._home = f"{token}@{seat}"
        except DsortError as error:
            self._error = located(error, self._where)

    def open(self, files: Mapping[str, bytes]) -> tuple[str, DsortError | None]:
        """The id of this home, or why there can be none. ``files``: what was shared until now."""
        error = self._error
        for name, data in files.items():
            if error is None and self._store is not None and not self._store.scratch.has(name):
                error = self.store(name, data)
        return self._home, error

    def answer(self, home: str, request: Request) -> tuple[Any, DsortError | None]:
        """The answer to ``request``, or the error that it ended with."""
        if home != self._home or self._store is None:
            return None, ScratchLostError(home, f"scratch {home} is gone")
        answer, error = reply(request, self._store)
        return answer, error and located(error, self._where)

    def store(self, name: str, data: bytes) -> DsortError | None:
        """Store a shared file."""
        if self._store is None:
            return self._error
        try:
            self._store.write_file(name, data)
        except DsortError as error:
            return located(error, self._where)
        return None

    def close(self, workers: Sequence[int], keep: bool) -> None:
        """Wait for the ``workers`` of this node, which were told to end, to be gone (process ids),
        and remove the job's scratch unless ``keep``."""
        ending = []
        for pid in workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                ending.append(psutil.Process(pid))
        psutil.wait_procs(ending, timeout=WORKERS_END_SECONDS_MAX)
        if not keep:
            remove_scratch(self._directory.parent)


def remove_scratch(scratch: Path) -> None:
    """Remove all of a job's scratch on this machine, that of nodes which are gone as well. (Several
    agents may do so at once.)"""
    shutil.rmtree(scratch, ignore_errors=True)


ANSWER_SECONDS_MAX = 300
"""An answer takes a fraction of a second. Ray tells within about half a minute that a node is
lost; this is for one that is there and does nothing."""


class RayExchange:
    """The :class:`~dsort.scratch.nodes.Exchange` of a worker on Ray. ``prefix``: of agents' names.

    An answer is in the object stores of both nodes until whoever asked lets go of it.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._agents: dict[str, Any] = {}

    def begin(self, home: str, request: Request) -> Callable[[], Any]:
        """See :class:`~dsort.scratch.nodes.Exchange`."""
        agent = self._agents.get(home)
        if agent is None:
            try:
                agent = ray.get_actor(agent_name(self._prefix, seat_of(home)), namespace=NAMESPACE)
            except ValueError as unknown:
                raise lost_home(home) from unknown
            self._agents[home] = agent
        return partial(self._finish, home, agent.answer.remote(home, request))

    def _finish(self, home: str, reference: Any) -> Any:
        try:
            answer, error = ray.get(reference, timeout=ANSWER_SECONDS_MAX)
        except LOST_ERRORS as lost:
            raise lost_home(home) from lost
        except GetTimeoutError as late:
            raise late_home(seat_of(home)) from late
        except RayTaskError as raised:
            raise InvariantError(f"node {seat_of(home)} failed:\n{raised}") from raised
        except RayError as failed:
            raise WorkerLostError(
                f"Ray failed to bring an answer of node {seat_of(home)}: {first_line(failed)}",
                hint="look at Ray's own logs",
            ) from failed
        if error is not None:
            raise error
        return answer


def lost_home(home: str) -> ScratchLostError:
    """What a home that cannot be asked any more is told with."""
    return ScratchLostError(
        home, f"the scratch on node {seat_of(home)} is lost", hint="look at the node"
    )


def late_home(seat: str) -> WorkerLostError:
    """What a home is told with that is there, and does not answer."""
    return WorkerLostError(
        f"node {seat} gave no answer in {ANSWER_SECONDS_MAX} seconds",
        hint="is it overloaded, or its disk broken?",
    )


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

    def __init__(self, launch: Launch, stop: StopFlag) -> None:
        self._launch = launch
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
        if not agent.home and ray.wait([agent.told], timeout=0)[0]:
            try:
                agent.home, _ = ray.get(agent.told)
            except RayError:
                self._forget(agent)
        return agent.home

    def homes(self) -> tuple[str, ...]:
        """See :class:`~dsort.runtime.base.Runtime`."""
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        for node_id, agent in list(self._agents.items()):
            if node_id not in alive:
                self._forget(agent)
        return tuple(filter(None, map(self.home_on, list(self._agents))))

    def share(self, name: str, data: bytes) -> None:
        """See :class:`~dsort.runtime.base.Runtime`. Agents that are still starting take it next."""
        shared = self._files[name] = ray.put(data)
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
            ray.wait(ends, num_returns=len(ends), timeout=CLOSE_SECONDS_MAX)
        for agent in agents.values():
            ray.kill(agent.actor)

    def _find(self, home: str) -> _Agent | None:
        seat = seat_of(home)
        agent = self._agents.get(node_of(seat))
        return agent if agent is not None and agent.seat == seat else None

    def _forget(self, agent: _Agent) -> None:
        node_id = node_of(agent.seat)
        if self._agents.get(node_id) is agent:
            del self._agents[node_id]
            self._losses[node_id] = self._losses.get(node_id, 0) + 1
            ray.kill(agent.actor)
            self.on_lost(node_id)

    def _take(self, agent: _Agent, reference: Any) -> Any:
        """What ``agent`` answers; ``ScratchLostError`` if it is lost."""
        end_s = time.monotonic() + ANSWER_SECONDS_MAX
        while True:
            self._stop.raise_if_requested()
            if ray.wait([reference], timeout=TICK_S)[0]:
                break
            if time.monotonic() > end_s:
                raise late_home(agent.seat)
        try:
            return ray.get(reference)
        except LOST_ERRORS as lost:
            if getattr(lost, "actor_init_failed", False):
                raise bug(lost, f"the agent of node {node_of(agent.seat)}") from lost
            self._forget(agent)
            raise lost_home(agent.home or f"@{agent.seat}") from lost
        except RayTaskError as raised:
            raise bug(raised, f"the agent of node {node_of(agent.seat)}") from raised
