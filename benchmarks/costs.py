"""What a job between object stores asks of them, and what that costs. Pure arithmetic.

Prices are S3's list prices of us-east-1, standard class, in dollars, as they stood in 2025: an
assumption, not a quotation. Traffic between the store and machines of its region is free. Storage
and machines are not counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from dsort.storage.limit import StoreLimits

__all__ = ["DOLLARS_A_REQUEST", "Layout", "Requests", "costs_of", "parts_of", "requests_of"]

PARTS_MAX = 10_000
WRITE_DOLLARS, READ_DOLLARS = 0.005 / 1000, 0.0004 / 1000
DOLLARS_A_REQUEST = {
    "list": WRITE_DOLLARS,
    "put": WRITE_DOLLARS,
    "upload_create": WRITE_DOLLARS,
    "upload_part": WRITE_DOLLARS,
    "complete": WRITE_DOLLARS,
    "get": READ_DOLLARS,
    "head": READ_DOLLARS,
    "delete": 0.0,
}


@dataclass(frozen=True, slots=True)
class Layout:
    """Shards and bytes in and out; shards of one side are all alike."""

    input_shards: int
    input_bytes: int
    output_shards: int
    output_bytes: int


@dataclass(frozen=True, slots=True)
class Requests:
    """What workers ask of the stores: each input once, each output once."""

    get: int
    put: int
    upload_create: int
    upload_part: int
    complete: int


def requests_of(layout: Layout, limits: StoreLimits | None = None) -> Requests:
    """A shard larger than a range is fetched in ranges; one larger than a part is a multipart
    upload (created, its parts, completed), a smaller one a single PUT."""
    limits = limits or StoreLimits()
    input_bytes = layout.input_bytes / max(layout.input_shards, 1)
    output_bytes = layout.output_bytes / max(layout.output_shards, 1)
    parts = parts_of(output_bytes, limits)
    uploads = layout.output_shards if parts > 1 else 0
    return Requests(
        get=layout.input_shards * _pieces(input_bytes, limits.range_bytes),
        put=layout.output_shards - uploads,
        upload_create=uploads,
        upload_part=uploads * parts,
        complete=uploads,
    )


def parts_of(size_bytes: float, limits: StoreLimits | None = None) -> int:
    """In how many parts an output shard is stored."""
    limits = limits or StoreLimits()
    return _pieces(size_bytes, max(limits.part_bytes, size_bytes / PARTS_MAX))


def _pieces(size: float, piece: float) -> int:
    return max(int(-(-size // piece)), 1)


def costs_of(requests: Requests, coordinator: Mapping[str, int]) -> dict[str, float]:
    """Dollars by kind of request. The coordinator's completions are those of the workers' uploads,
    and counted once."""
    counts = asdict(requests)
    for kind, count in coordinator.items():
        if kind != "complete":
            counts[kind] = counts.get(kind, 0) + count
    return {kind: count * DOLLARS_A_REQUEST[kind] for kind, count in counts.items()}
