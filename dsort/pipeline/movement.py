"""How payload moves from input to output shards: chosen once for a job, and sent to each worker."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MovementSizes:
    """``memory_bytes``: what the job may use on a node; ``needed_bytes``: what it takes of that,
    with the page cache that ``map`` lives by. ``scratch_bytes``: room that spill and index files
    need. ``payload_bytes``: all inputs as they move; an estimate if ``encoded_inputs``."""

    memory_bytes: int
    needed_bytes: int
    scratch_bytes: int
    payload_bytes: int = 0
    encoded_inputs: bool = False


@dataclass(frozen=True, slots=True)
class Movement:
    """``kind`` is ``map``, ``range`` or ``spill``; ``reason`` says why, for people.

    ``buffer_bytes``: the one payload buffer of each worker; ``spill`` reads an input shard that
    fits in it once, and a larger one window by window, twice; ``range`` reads records into it.
    ``partitions``: how many ranges of sort keys the records are spread over. ``values_stay``: rows
    of tables are spilled without their long values where those can be taken from mapped inputs.
    ``hops``: under ``range``, headers are so far apart that they are read one by one; else shards
    are read whole. ``to_disk``: scratch is more than stays in memory until it goes; ``past_cache``:
    so much that the page cache has next to nothing of it when it is read.
    """

    kind: str
    reason: str
    workers: int
    partitions: int
    buffer_bytes: int
    sizes: MovementSizes
    values_stay: bool = False
    hops: bool = False
    to_disk: bool = True
    past_cache: bool = False
