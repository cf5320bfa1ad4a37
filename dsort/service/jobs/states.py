"""The states of a job, and the events that lead from one state to another.

``transition`` is the only source of a job's next state; ``changes.change`` is the only statement
that stores it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, Protocol, TypeAlias

from dsort.errors import ConflictError

QUEUED: Final = "queued"
RUNNING: Final = "running"
STATES: Final = (QUEUED, RUNNING, "finished", "failed", "stopped")
ENDED: Final = frozenset(("finished", "failed", "stopped"))
EXIT_STOPPED: Final = 143
"""The exit code of a job that was stopped while it had no process: the same as after SIGTERM."""

Event: TypeAlias = Literal[
    "begun",  # a replica takes the job from the queue: its next attempt
    "reported",  # the attempt reports its progress, and so that it is alive
    "taken_over",  # the process of the attempt is gone: the next attempt goes on
    "put_back",  # the attempt is over, and the job waits for the next one
    "stop_asked",  # a user, a schedule or a limit requests the stop
    "discard_asked",  # the same, for a queued job that has left work in its bucket
    "finished",
    "failed",
    "stopped",
    "resumed",  # a user requests another attempt of a job that has ended
]

_NEXT: Final[Mapping[tuple[str, Event], str]] = {
    (QUEUED, "begun"): RUNNING,
    (QUEUED, "stop_asked"): "stopped",  # there is no process that has to clean up
    (QUEUED, "discard_asked"): QUEUED,  # until its next process has cleaned up
    (RUNNING, "reported"): RUNNING,
    (RUNNING, "taken_over"): RUNNING,
    (RUNNING, "put_back"): QUEUED,
    (RUNNING, "stop_asked"): RUNNING,  # until its process has read the request
    (RUNNING, "finished"): "finished",
    (RUNNING, "failed"): "failed",
    (RUNNING, "stopped"): "stopped",
    ("failed", "resumed"): QUEUED,
    ("stopped", "resumed"): QUEUED,
}
_HINTS: Final[Mapping[Event, str]] = {"resumed": "only a failed or stopped job can be resumed"}


class Standing(Protocol):
    """The state of a job, as stored or as the caller assumes."""

    @property
    def job_id(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def attempt(self) -> int: ...


def transition(job: Standing, event: Event) -> str:
    """The state to which ``event`` leads. ``ConflictError`` if ``event`` cannot happen to a job in
    this state."""
    after = _NEXT.get((job.state, event))
    if after is None:
        raise ConflictError(f"job {job.job_id} is {job.state}", hint=_HINTS.get(event, ""))
    return after
