"""The Python client of a dsort service.

The client needs the extra ``client`` (``pip install "dsort-shards[client]"``), or the distribution
``dsort-client`` alone.
"""

from __future__ import annotations

from dsort.client.client import AsyncClient, DsortClient
from dsort.client.events import JobEnded, JobEvent, LogText, StateChanged
from dsort.client.transport import Patience
from dsort.client.values import (
    Identity,
    Job,
    JobProgress,
    PhaseTotals,
    Schedule,
    ScheduleRun,
    Validation,
    WaitTimeoutError,
)

__all__ = [
    "AsyncClient",
    "DsortClient",
    "Identity",
    "Job",
    "JobEnded",
    "JobEvent",
    "JobProgress",
    "LogText",
    "Patience",
    "PhaseTotals",
    "Schedule",
    "ScheduleRun",
    "StateChanged",
    "Validation",
    "WaitTimeoutError",
]
