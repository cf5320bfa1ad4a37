"""Chooses the move for the movement of a job. A job imports only the move that it needs."""

from __future__ import annotations

from collections.abc import Callable

from dsort.moves.base import Move, WorkerParts


def move_of(parts: WorkerParts) -> Move:
    """The move with which the worker with ``parts`` reads payload back."""
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
"""By the names of the ways in ``dsort.pipeline.movement``."""
