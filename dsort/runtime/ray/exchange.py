"""How a worker on Ray gets what other nodes have: questions by Ray, blocks of spill straight
from their node.

Ray is who knows whether a node is there. So whatever fails without it is asked of Ray once more:
a node that is lost, slow or without the file is found out in one way alone. If Ray brings the block
all the same, the node is not reached from here, and the rest of its blocks come by Ray.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from dsort.errors import InvariantError, WorkerLostError
from dsort.log_lines import logger_of
from dsort.runtime.ray.block_client import BlockClient, BlockError, UnreachableError
from dsort.runtime.ray.block_server import BlockPlace
from dsort.runtime.ray.block_stream import NoBlocksError
from dsort.runtime.ray.block_tickets import BlockKey
from dsort.runtime.ray.library import LOST_ERRORS, GetTimeoutError, RayError, RayTaskError, ray
from dsort.runtime.ray.messages import first_line
from dsort.runtime.ray.scratch_nodes import (
    ANSWER_SECONDS_MAX,
    NAMESPACE,
    agent_name,
    late_scratch,
    lost_scratch,
    node_slot_of,
)
from dsort.scratch.nodes import Request
from dsort.scratch.spill import Payload, SpillBlock

log = logger_of("runtime")


@dataclass(frozen=True, slots=True)
class BlockRules:
    """How blocks of one job travel. ``key`` None: by Ray, as all else does."""

    key: BlockKey | None
    place: BlockPlace


class RayExchange:
    """The :class:`~dsort.scratch.nodes.Exchange` of a worker on Ray. ``prefix``: of agents' names.

    An answer that Ray brings is in the object stores of both nodes until whoever asked lets go of
    it.
    """

    def __init__(self, prefix: str, rules: BlockRules) -> None:
        self._prefix = prefix
        self._key = rules.key
        self._place = rules.place
        self._client: BlockClient | None = None
        self._agents: dict[str, Any] = {}
        self._locations: dict[str, str] = {}  # "": blocks of this node come by Ray
        self._unreachable: list[tuple[str, str]] = []

    def begin(self, scratch_node: str, request: Request) -> Callable[[], Any]:
        """See :class:`~dsort.scratch.nodes.Exchange`."""
        if self._key is not None and isinstance(request, SpillBlock):
            location = self._location(scratch_node)
            if location and self._client is not None:
                coming = self._client.begin(location, scratch_node, request)
                return partial(self._finish_block, scratch_node, request, location, coming)
        return self._begin_by_ray(scratch_node, request)

    def unreachable(self) -> tuple[tuple[str, str], ...]:
        """(scratch node, reason) of those that turned out not to be reached since this was asked
        last."""
        found, self._unreachable = tuple(self._unreachable), []
        return found

    # -- from the node itself --------------------------------------------------------------------

    def _location(self, scratch_node: str) -> str:
        """Where the server of a node listens; "" if there is none."""
        location = self._locations.get(scratch_node)
        if location is None:
            location = self._ask_location(scratch_node)
            self._locations[scratch_node] = location
        return location

    def _ask_location(self, scratch_node: str) -> str:
        key = self._key
        assert key is not None
        try:
            if self._client is None:
                self._client = BlockClient(key)
        except NoBlocksError as none:
            self._key = None  # for no node; that is said once
            self._unreachable.append((scratch_node, f"this worker cannot ask for blocks: {none}"))
            return ""
        asked = self._agent(scratch_node).blocks_at.remote(key, self._place)
        location, reason = self._answer(scratch_node, asked)
        log.debug("blocks of node %s come from %s", scratch_node, location or f"Ray: {reason}")
        if reason:
            self._unreachable.append((scratch_node, str(reason)))
        return str(location)

    def _finish_block(
        self, scratch_node: str, block: SpillBlock, location: str, coming: Future[Payload]
    ) -> Payload:
        try:
            return coming.result()
        except BlockError as failed:
            log.debug("a block of node %s did not come: %s; Ray is asked", scratch_node, failed)
            payload: Payload = self._begin_by_ray(scratch_node, block)()
            # Ray has brought it. So it is the connection that does not work, unless another process
            # is the agent by now, or another block of this node has failed before.
            if isinstance(failed, UnreachableError) and self._locations[scratch_node] == location:
                self._locations[scratch_node] = self._ask_location(scratch_node)
                if self._locations[scratch_node] == location:
                    self._locations[scratch_node] = ""
                    self._unreachable.append((scratch_node, f"{location}: {failed}"))
            return payload

    # -- by Ray ----------------------------------------------------------------------------------

    def _begin_by_ray(self, scratch_node: str, request: Request) -> Callable[[], Any]:
        log.debug("the worker asks scratch %s: %s", scratch_node, type(request).__name__)
        reference = self._agent(scratch_node).answer.remote(scratch_node, request)
        return partial(self._finish, scratch_node, reference)

    def _agent(self, scratch_node: str) -> Any:
        agent = self._agents.get(scratch_node)
        if agent is None:
            try:
                agent = ray.get_actor(
                    agent_name(self._prefix, node_slot_of(scratch_node)), namespace=NAMESPACE
                )
            except ValueError as unknown:
                raise lost_scratch(scratch_node) from unknown
            self._agents[scratch_node] = agent
        return agent

    def _finish(self, scratch_node: str, reference: Any) -> Any:
        answer, error = self._answer(scratch_node, reference)
        if error is not None:
            raise error
        return answer

    def _answer(self, scratch_node: str, reference: Any) -> Any:
        """What an agent answers."""
        try:
            return ray.get(reference, timeout=ANSWER_SECONDS_MAX)
        except LOST_ERRORS as lost:
            raise lost_scratch(scratch_node) from lost
        except GetTimeoutError as late:
            raise late_scratch(node_slot_of(scratch_node)) from late
        except RayTaskError as raised:
            raise InvariantError(f"node {node_slot_of(scratch_node)} failed:\n{raised}") from raised
        except RayError as failed:
            raise WorkerLostError(
                f"Ray failed to bring an answer of node {node_slot_of(scratch_node)}: "
                f"{first_line(failed)}",
                hint="look at Ray's own logs",
            ) from failed
