"""Which move goes with the movement of a job. Each is loaded by the jobs that need it."""

from __future__ import annotations

from dsort.moves.base import Move, WorkerParts


def move_of(parts: WorkerParts) -> Move:
    """How the worker with ``parts`` gets payload back."""
    if parts.carrier.is_columnar:
        from dsort.moves.rows import RowMove

        return RowMove(parts)
    if parts.movement.kind == "map":
        from dsort.moves.map import MapMove

        return MapMove(parts)
    if parts.movement.kind == "range":
        from dsort.moves.ranged import RangeMove

        return RangeMove(parts)
    from dsort.moves.spill import SpillMove

    return SpillMove(parts)
