"""What a job reports while it runs: plain values, frozen and picklable.

Events go to the ``on_event`` callback of ``dsort.run`` and ``dsort.plan``, in the caller's thread,
in the order things happen.
"""

from __future__ import annotations

from msgspec import Struct


class JobStarted(Struct, frozen=True):
    """The inputs are known and the way payload moves is chosen; workers start now."""

    job_id: str
    move: str  # map | range | spill
    workers: int
    input_shards: int
    input_bytes: int
    where: str = ""  # the addresses that a Ray listens on


class Progress(Struct, frozen=True):
    """The progress of one phase. A total of 0 is not known (yet). ``members_done``,
    ``payload_bytes_done``: of extraction; payload without headers and padding."""

    job_id: str
    phase: str  # resolve | extract | plan | create | commit
    shards_done: int
    shards_total: int
    records_done: int
    bytes_done: int
    bytes_total: int
    elapsed_s: float  # since this phase began
    members_done: int = 0
    payload_bytes_done: int = 0


class PhaseDone(Struct, frozen=True):
    """One phase is over; its totals. ``members``, ``payload_bytes``: as of ``Progress``."""

    job_id: str
    phase: str
    elapsed_s: float
    shards: int
    records: int
    bytes: int
    members: int = 0
    payload_bytes: int = 0


class JobWarning(Struct, frozen=True):
    """Something the user should know that does not stop the job."""

    job_id: str
    kind: str  # the reaction's or the note's name, for example "missing_shards"
    text: str


Event = Progress | PhaseDone | JobWarning | JobStarted
