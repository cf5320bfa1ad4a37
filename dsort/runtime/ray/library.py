"""Imports the Ray library as dsort needs it, with the errors that mean that no answer will come."""

from __future__ import annotations

import os
import sys

if "ray" not in sys.modules:  # Ray reads its environment only while it is imported
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Ray's servers would log to stdout. dsort itself reports the lines that matter.
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
"""The process that should answer is gone, or the answer is gone with its node."""
