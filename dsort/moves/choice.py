"""Which move goes with the movement of a job. Each is loaded by the jobs that need it."""

from __future__ import annotations

from collections.abc import Callable

from dsort.moves.base import Move, WorkerParts


def move_of(parts: WorkerParts) -> Move:
    """How the worker with ``parts`` gets payload back."""
    if parts.carrier.is_columnar:
        from dsort.moves.spilled_rows import RowMove

        return RowMove(parts)
    return MOVE_OF_WAY[parts.movement.way.name](parts)


def _map(parts: WorkerParts) -> Move:
    from dsort.moves.map import MapMove

    return MapMove(parts)


def _range(parts: WorkerParts) -> Move:
    from dsort.moves.ranged import RangeMove

    return RangeMove(parts)


def _spill(parts: WorkerParts) -> Move:
    from dsort.moves.spill import SpillMove

    return SpillMove(parts)


MOVE_OF_WAY: dict[str, Callable[[WorkerParts], Move]] = {
    "map": _map,
    "range": _range,
    "spill": _spill,
}
"""By the names of the ways of ``dsort.pipeline.movement``."""
