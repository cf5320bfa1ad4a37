"""The Ray library, imported as dsort needs it, and the errors that say an answer will not come."""

from __future__ import annotations

import os
import sys

if "ray" not in sys.modules:  # Ray reads its environment once, when it is imported
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Ray's servers would log to stdout. What matters of that, dsort reports itself.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")

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

__all__ = [
    "LOST_ERRORS",
    "GetTimeoutError",
    "NodeAffinitySchedulingStrategy",
    "RayError",
    "RayTaskError",
    "TaskUnschedulableError",
    "ray",
]

LOST_ERRORS = (
    ActorUnschedulableError,  # the actor was pinned to a node that is gone
    NodeDiedError,
    ObjectLostError,
    RayActorError,
    WorkerCrashedError,
)
"""The process that was to answer is gone, or the answer is gone with its node."""
