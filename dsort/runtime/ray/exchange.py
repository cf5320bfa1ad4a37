"""How one node asks another: calls of its agent, whose errors are told in our words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from dsort.errors import InvariantError, ScratchLostError, WorkerLostError
from dsort.runtime.ray.agent import NAMESPACE, agent_name, seat_of
from dsort.runtime.ray.messages import first_line
from dsort.scratch.nodes import Request

__all__ = ["ANSWER_SECONDS_MAX", "RayCalls", "RayExchange", "late_home", "lost_home"]

ANSWER_SECONDS_MAX = 300
"""An answer takes a fraction of a second. Ray tells within about half a minute that a node is
lost; this is for one that is there and does nothing."""


@dataclass(frozen=True, slots=True)
class RayCalls:
    """What is used of Ray, given by the module that may import it.

    Errors: ``lost``: whoever was to answer is gone, or the answer with its node; ``late``: it is
    not there yet; ``raised``: a call raised it; ``failed``: all of Ray's, these among them.
    """

    nodes: Callable[[], list[Mapping[str, Any]]]
    get_actor: Callable[..., Any]
    kill: Callable[..., Any]
    put: Callable[..., Any]
    wait: Callable[..., Any]
    get: Callable[..., Any]
    lost: tuple[type[Exception], ...]
    late: type[Exception]
    raised: type[Exception]
    failed: type[Exception]


class RayExchange:
    """The :class:`~dsort.scratch.nodes.Exchange` of a worker on Ray. ``prefix``: of agents' names.

    An answer is in the object stores of both nodes until whoever asked lets go of it.
    """

    def __init__(self, prefix: str, calls: RayCalls) -> None:
        self._prefix = prefix
        self._calls = calls
        self._agents: dict[str, Any] = {}

    def begin(self, home: str, request: Request) -> Callable[[], Any]:
        """See :class:`~dsort.scratch.nodes.Exchange`."""
        agent = self._agents.get(home)
        if agent is None:
            try:
                agent = self._calls.get_actor(
                    agent_name(self._prefix, seat_of(home)), namespace=NAMESPACE
                )
            except ValueError as unknown:
                raise lost_home(home) from unknown
            self._agents[home] = agent
        return partial(self._finish, home, agent.answer.remote(home, request))

    def _finish(self, home: str, reference: Any) -> Any:
        try:
            answer, error = self._calls.get(reference, timeout=ANSWER_SECONDS_MAX)
        except self._calls.lost as lost:
            raise lost_home(home) from lost
        except self._calls.late as late:
            raise late_home(seat_of(home)) from late
        except self._calls.raised as raised:
            raise InvariantError(f"node {seat_of(home)} failed:\n{raised}") from raised
        except self._calls.failed as failed:
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
