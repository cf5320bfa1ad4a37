"""Which move goes with the movement of a job. Each is loaded by the jobs that need it."""

from __future__ import annotations

from dsort.workers.payload import Move, WorkerParts


def move_of(parts: WorkerParts) -> Move:
    """How the worker with ``parts`` gets payload back."""
    if parts.carrier.is_columnar:
        from dsort.workers.row_payload import RowMove

        return RowMove(parts)
    if parts.movement.kind == "map":
        from dsort.workers.mapped_inputs import MapMove

        return MapMove(parts)
    if parts.movement.kind == "range":
        from dsort.workers.ranged import RangeMove

        return RangeMove(parts)
    from dsort.workers.spilled import SpillMove

    return SpillMove(parts)
