"""Jobs as they are put into the queue of a service."""

from __future__ import annotations

from typing import Any

from dsort.service.database.tables import JobRow

__all__ = ["job_row"]


def job_row(job_id: str = "a", **more: Any) -> JobRow:
    """A job of ann, with an empty spec and no claims unless ``more`` has others."""
    values: dict[str, Any] = {
        "kind": "run",
        "owner": "ann",
        "spec": {},
        "input_uri": "file:///in",
        "output_uri": "file:///out",
        "claims": [],
    }
    return JobRow(job_id=job_id, **{**values, **more})
