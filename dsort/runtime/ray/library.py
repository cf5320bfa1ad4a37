"""The parts of the Ray library that dsort needs: the errors after which no answer will come, and
Ray's messages in a user's words."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import (
    ActorUnschedulableError,
    GetTimeoutError,
    NodeDiedError,
    ObjectLostError,
    RayActorError,
    RayError,
    RayTaskError,
    TaskUnschedulableError,
    WorkerCrashedError,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from dsort.errors import (
    DsortError,
    InvariantError,
    StorageError,
    WorkerLostError,
)
from dsort.runtime.ray.cluster import PORT_HINT

__all__ = [
    "LOST_ERRORS",
    "GetTimeoutError",
    "NodeAffinitySchedulingStrategy",
    "RayError",
    "RayTaskError",
    "TaskUnschedulableError",
    "ray",
]

if "ray" not in sys.modules:  # Ray reads its environment only while it is imported
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Ray's servers would log to stdout. dsort itself reports the lines that matter.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")


LOST_ERRORS = (
    ActorUnschedulableError,  # the actor was pinned to a node that is gone
    NodeDiedError,
    ObjectLostError,
    RayActorError,
    WorkerCrashedError,
)
"""The process that should answer is gone, or the answer is gone with its node."""


NAMES_SHOWN_MAX = 3


def node_words(host: str, address: str, node_id: str) -> str:
    """A node by all the names that a user may know."""
    return f"{host} ({address}, {node_id})"


def words_of(node: Mapping[str, Any]) -> str:
    """A row of ``ray.nodes()`` in words."""
    return node_words(node["NodeManagerHostname"], node["NodeManagerAddress"], node["NodeID"])


def listed(names: Sequence[str]) -> str:
    """The first of ``names``, and the number of the others."""
    shown = ", ".join(names[:NAMES_SHOWN_MAX])
    more = len(names) - NAMES_SHOWN_MAX
    return f"{shown} and {more} more" if more > 0 else shown


def first_line(text: object) -> str:
    """The first non-empty line of a text, or of an error's message."""
    return next(filter(None, map(str.strip, str(text).splitlines())), type(text).__name__)


def located(error: DsortError, where: str) -> DsortError:
    """``error``, with the place ``where`` ("": none) in its message if the place, and not the spec
    or the data, may have caused it."""
    if where and isinstance(error, (StorageError, WorkerLostError, InvariantError)):
        error.message = f"{error.message} ({where})"
        error.args = (error.message,)
    return error


def bug(error: Exception, where: str) -> DsortError:
    """Convert an exception that a call of an actor raised. It is none of dsort's own errors,
    because these are returned as answers."""
    text = str(error).strip()
    if "ModuleNotFoundError" in text or "ImportError" in text:
        address = re.search(r"ip=([^,)]+)", text)
        return WorkerLostError(
            f"{where}{f' at {address[1]}' if address else ''} cannot load dsort: "
            f"{text.splitlines()[-1]}",
            hint="install this version of dsort, with all that it needs, on every node",
        )
    return InvariantError(f"{where} failed:\n{text}")


def cause(died: Exception) -> tuple[str, str]:
    """Why a worker died, and a hint."""
    text, kind = str(died), type(died).__name__
    if kind == "OutOfMemoryError" or "running low on memory" in text:
        return "its node ran out of memory", "give less with --max-memory, or fewer --workers"
    if kind == "ActorUnavailableError" or "its node has died" in text:
        return "its node was lost", "look at the node, and at the network"
    detail = text.rpartition("Worker exit detail: ")[2].partition(" Some common causes")[0]
    if detail == text:
        reason = text.rpartition("The actor is dead because ")[2]
        return f"Ray reports: {first_line(reason)}", "look at Ray's own logs"
    return (
        f"its process ended ({first_line(detail)})",
        "look at that shard, and at the memory that workers have",
    )


def explain(error: Exception, address: str | None) -> DsortError:
    """An error in a user's words: why a Ray could not be started (``address`` None) or joined."""
    if isinstance(error, DsortError):
        return error
    text = "\n".join(map(str, _chain(error)))
    first = first_line(error)
    if address is None:
        return WorkerLostError(
            f"Ray could not be started on this machine: {first}",
            hint="without --ray the job runs on this machine as well",
        )
    where = "this machine" if address == "auto" else address
    if "ray[client]" in text:
        return WorkerLostError(
            f"Ray's client, which {address} needs, is not installed",
            hint="pip install 'ray[client]', or run dsort on a node of the cluster: auto",
        )
    if "ersion mismatch" in text:
        return WorkerLostError(
            f"the Ray cluster at {where} has other versions: {' '.join(text.split())}",
            hint="use the versions of Ray and Python that the cluster has",
        )
    if "AuthToken" in text or "AuthenticationError" in text:
        return WorkerLostError(
            f"the Ray cluster at {where} requires a token, which this process does not have",
            hint="set RAY_AUTH_MODE=token, and put the cluster's token into ~/.ray/auth_token",
        )
    if isinstance(error, ConnectionError):
        found = "no Ray cluster was found on this machine" if address == "auto" else None
        return WorkerLostError(found or f"no Ray cluster can be joined at {where}", hint=PORT_HINT)
    return WorkerLostError(f"cannot join the Ray cluster at {where}: {first}", hint=PORT_HINT)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
