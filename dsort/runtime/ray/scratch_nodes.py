"""The scratch nodes of a job on Ray. On each node with workers, an agent holds the scratch
directory; it answers requests of the coordinator, and of workers on other nodes, from the files
there."""

from __future__ import annotations

import contextlib
import shutil
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import psutil
from msgspec import Struct

from dsort.errors import DsortError, ScratchLostError, WorkerLostError
from dsort.log_lines import logger_of
from dsort.runtime.base import given, reply
from dsort.runtime.ray.block_server import BlockPlace, BlockServer
from dsort.runtime.ray.block_stream import BlockKey, NoBlocksError
from dsort.runtime.ray.library import (
    LOST_ERRORS,
    RayError,
    RayTaskError,
    bug,
    located,
    node_words,
    ray,
)
from dsort.scratch.index import IndexStore
from dsort.scratch.nodes import Request, make_scratch, open_scratch
from dsort.stop_flag import StopFlag

NAMESPACE = "dsort"
AGENT_THREADS = 4
"""The number of requests that are answered at the same time; each may be 16 MiB of payload."""

WORKERS_END_SECONDS_MAX = 5

log = logger_of("runtime")


# Ids are made here, so that the id of a scratch node suffices to find its agent:
#
# node_slot  <node id>, or <node id>-<n> for the scratch that was made after n scratch
#            nodes were lost there. Names the directory in the job's scratch directory.
# scratch id <token>@<node_slot>; the token is in the directory.
# agent      dsort-<job id>-<random>-<node_slot>, in Ray's namespace dsort. Each runtime
#            draws another random part: agents of a dead coordinator may still exist.
def agent_name(prefix: str, node_slot: str) -> str:
    """The name of the agent of ``node_slot``; ``prefix``: the job id and the random part."""
    return f"dsort-{prefix}-{node_slot}"


def node_of(node_slot: str) -> str:
    """The node id of a node slot."""
    return node_slot.partition("-")[0]


def node_slot_of(scratch_node: str) -> str:
    """The node slot of a scratch node, by its id."""
    return scratch_node.rpartition("@")[2]


def token_of(scratch_node: str) -> str:
    """The token that distinguishes the directory of a scratch node from others at its slot."""
    return scratch_node.rpartition("@")[0]


class NodeAgent:
    """The scratch node at ``node_slot`` of the job's ``scratch`` directory: holds its files and
    answers requests.

    Ray may restart it, in a new process in place of one that died. ``address``: the name of the
    node in errors; None: there is no other node.
    """

    def __init__(
        self, scratch: str, node_slot: str, owner: Mapping[str, str], address: str | None
    ) -> None:
        node_id = node_of(node_slot)
        node = node_words(socket.gethostname(), address, node_id) if address else ""
        self._where = f"node {node}" if node else ""
        self._directory = Path(scratch) / node_slot
        self._store: IndexStore | DsortError
        self._scratch_node = ""
        self._blocks: BlockServer | None = None
        self._blocks_lock = threading.Lock()
        for other in self._directory.parent.glob(f"{node_id}*"):
            if other != self._directory:  # a lost scratch node: its content is made again
                shutil.rmtree(other, ignore_errors=True)
        try:
            token = make_scratch(self._directory, owner)
            self._store = IndexStore(open_scratch(self._directory, token))
            self._scratch_node = f"{token}@{node_slot}"
        except DsortError as error:
            self._store = located(error, self._where)

    def open(self, files: Mapping[str, bytes]) -> str | DsortError:
        """The id of this scratch node, or the error because of which it cannot be used. ``files``:
        all files that were shared until now."""
        for name, data in files.items():
            is_there = isinstance(self._store, IndexStore) and self._store.scratch.has(name)
            error = "" if is_there else self.store(name, data)
            if error:
                return error
        return self._store if isinstance(self._store, DsortError) else self._scratch_node

    def answer(self, scratch_node: str, request: Request) -> Any:
        """The answer to ``request``, or the ``DsortError`` that it caused."""
        if scratch_node != self._scratch_node or isinstance(self._store, DsortError):
            return ScratchLostError(scratch_node, f"scratch {scratch_node} is gone")
        answer = reply(request, self._store)
        return located(answer, self._where) if isinstance(answer, DsortError) else answer

    def blocks_at(self, key: BlockKey, place: BlockPlace, address: str) -> tuple[str, str]:
        """(the address of this node's server for blocks of spill, or the reason why there is none).
        Starts the server on the first call: jobs that move no blocks need none. ``address``: the
        address of this node."""
        with self._blocks_lock:
            if self._blocks is None:
                if isinstance(self._store, DsortError):
                    return "", "it has no scratch"
                scratch, node = self._store.scratch, self._scratch_node
                try:
                    self._blocks = BlockServer(scratch, node, key, place, address)
                except NoBlocksError as none:
                    return "", str(none)
            return self._blocks.location, ""

    def store(self, name: str, data: bytes) -> DsortError | Literal[""]:
        """Store a shared file. Returns "", or the error that prevented this."""
        if isinstance(self._store, DsortError):
            return self._store
        try:
            self._store.write_file(name, data)
        except DsortError as error:
            return located(error, self._where)
        return ""

    def close(self, workers: Sequence[int], keep: bool) -> None:
        """Wait for the end of the ``workers`` (process ids) of this node, which are being killed;
        then remove the job's scratch unless ``keep``."""
        ending = []
        for pid in workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                ending.append(psutil.Process(pid))
        psutil.wait_procs(ending, timeout=WORKERS_END_SECONDS_MAX)
        if not keep:
            remove_scratch(self._directory.parent)


def remove_scratch(scratch: Path) -> None:
    """Remove all scratch of a job on this machine, even scratch of lost scratch nodes. (Several
    agents may do so at once.)"""
    shutil.rmtree(scratch, ignore_errors=True)


ANSWER_SECONDS_MAX = 300
"""An answer takes a fraction of a second. Ray reports a lost node within about half a minute; this
limit is for a node that exists and does nothing."""


def lost_scratch(scratch_node: str) -> ScratchLostError:
    """The error for a scratch node that is gone."""
    return ScratchLostError(
        scratch_node,
        f"the scratch on node {node_slot_of(scratch_node)} is lost",
        hint="look at the node",
    )


def late_scratch(node_slot: str) -> WorkerLostError:
    """The error for a scratch node that exists but did not answer in time."""
    return WorkerLostError(
        f"node {node_slot} gave no answer in {ANSWER_SECONDS_MAX} seconds",
        hint="is it overloaded, or its disk broken?",
    )


TICK_S = 0.1
CLOSE_SECONDS_MAX = 30

Launch = Callable[[str, str], Any]
"""Starts the agent of (node id, node slot)."""


class _Agent(Struct, eq=False):
    """``opened``: a reference to the id of its scratch node, or to the error with which the start
    of the node failed; ``scratch_node``: this id, "" until it is known."""

    actor: Any
    node_slot: str
    opened: Any
    scratch_node: str = ""


class RayScratchNodes:
    """Agents by node. ``on_lost`` is called with the node id of scratch that is lost."""

    def __init__(self, launch: Launch, stop: StopFlag) -> None:
        self._launch = launch
        self._stop = stop
        self.on_lost: Callable[[str], None] = lambda node_id: None
        self._agents: dict[str, _Agent] = {}
        self._losses: dict[str, int] = {}
        self._files: dict[str, Any] = {}

    def __len__(self) -> int:
        return len(self._agents)

    def scratch_ref(self, node_id: str) -> Any:
        """A reference to the id of the scratch node on ``node_id``, or to the error with which the
        start of the scratch node failed. Starts the agent if there is none."""
        if node_id not in self._agents:
            losses = self._losses.get(node_id, 0)
            node_slot = f"{node_id}-{losses}" if losses else node_id
            log.debug("node %s gets an agent for its scratch", node_slot)
            actor = self._launch(node_id, node_slot)
            opened = actor.open.remote(list(self._files), *self._files.values())
            self._agents[node_id] = _Agent(actor, node_slot, opened)
        return self._agents[node_id].opened

    def wait(self) -> None:
        """Wait for all scratch nodes. If a node cannot have a scratch node, its error is raised."""
        for agent in list(self._agents.values()):
            try:
                opened = self._take(agent, agent.opened)
            except ScratchLostError:
                continue
            agent.scratch_node = given(opened)

    def scratch_on(self, node_id: str) -> str:
        """The scratch node on a node, "" if there is none (yet)."""
        if node_id not in self._agents:
            return ""
        agent = self._agents[node_id]
        if not agent.scratch_node and ray.wait([agent.opened], timeout=0)[0]:
            try:
                opened = ray.get(agent.opened)
                agent.scratch_node = "" if isinstance(opened, DsortError) else opened
            except RayError:
                self._forget(agent)
        return agent.scratch_node

    def scratch_nodes(self) -> tuple[str, ...]:
        """See :class:`~dsort.runtime.base.Runtime`."""
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        for node_id, agent in list(self._agents.items()):
            if node_id not in alive:
                self._forget(agent)
        return tuple(filter(None, map(self.scratch_on, list(self._agents))))

    def share(self, name: str, data: bytes) -> None:
        """See :class:`~dsort.runtime.base.Runtime`. Agents that are still starting store the file
        later."""
        log.debug("the file %s is shared: %d bytes", name, len(data))
        shared = self._files[name] = ray.put(data)
        agents = list(self._agents.values())
        stored = [agent.actor.store.remote(name, shared) for agent in agents]
        for agent, reference in zip(agents, stored, strict=True):
            try:
                stored_there = self._take(agent, reference)
            except ScratchLostError:
                continue
            given(stored_there)

    def ask(self, scratch_node: str, request: Request) -> Any:
        """See :class:`~dsort.runtime.base.Runtime`."""
        agent = self._find(scratch_node)
        log.debug("the coordinator asks scratch %s: %s", scratch_node, type(request).__name__)
        return given(self._take(agent, agent.actor.answer.remote(scratch_node, request)))

    def tell(self, scratch_node: str, request: Request) -> None:
        """See :class:`~dsort.runtime.base.Runtime`."""
        with contextlib.suppress(ScratchLostError):
            self._find(scratch_node).actor.answer.remote(scratch_node, request)

    def lose(self, scratch_node: str) -> None:
        """Stop using ``scratch_node``, even if it exists: a worker could not reach it, so its
        content has to be made again. If its node exists, the node gets another scratch node."""
        with contextlib.suppress(ScratchLostError):
            self._forget(self._find(scratch_node))

    def close(self, workers: Mapping[str, Sequence[int]], *, keep: bool) -> None:
        """End all agents, and remove their scratch unless ``keep``. ``workers``: the processes that
        are being ended, by node."""
        agents, self._agents = self._agents, {}
        ends = [
            agent.actor.close.remote(list(workers.get(node_id, ())), keep)
            for node_id, agent in agents.items()
        ]
        if ends:
            ray.wait(ends, num_returns=len(ends), timeout=CLOSE_SECONDS_MAX)
        for agent in agents.values():
            ray.kill(agent.actor)

    def _find(self, scratch_node: str) -> _Agent:
        """The agent of ``scratch_node``; ``ScratchLostError`` if there is none any more."""
        node_slot = node_slot_of(scratch_node)
        agent = self._agents.get(node_of(node_slot))
        if not (agent and agent.node_slot == node_slot):
            raise lost_scratch(scratch_node)
        return agent

    def _forget(self, agent: _Agent) -> None:
        node_id = node_of(agent.node_slot)
        # Several calls may notice the same loss: only the first one counts.
        if self._agents.get(node_id) is agent:
            del self._agents[node_id]
            self._losses[node_id] = self._losses.get(node_id, 0) + 1
            log.debug("the scratch of node %s is used no more: %s", node_id, agent.scratch_node)
            ray.kill(agent.actor)
            self.on_lost(node_id)

    def _take(self, agent: _Agent, reference: Any) -> Any:
        """The answer of ``agent``; ``ScratchLostError`` if it is lost."""
        end_s = time.monotonic() + ANSWER_SECONDS_MAX
        while True:
            self._stop.raise_if_requested()
            if ray.wait([reference], timeout=TICK_S)[0]:
                break
            if time.monotonic() > end_s:
                raise late_scratch(agent.node_slot)
        try:
            return ray.get(reference)
        except LOST_ERRORS as lost:
            if getattr(lost, "actor_init_failed", False):
                raise bug(lost, f"the agent of node {node_of(agent.node_slot)}") from lost
            self._forget(agent)
            raise lost_scratch(agent.scratch_node or f"@{agent.node_slot}") from lost
        except RayTaskError as raised:
            raise bug(raised, f"the agent of node {node_of(agent.node_slot)}") from raised
