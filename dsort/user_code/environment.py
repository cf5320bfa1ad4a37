"""The environment of what is not dsort's own: users' functions, programs and commands."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

__all__ = ["code_environment", "outside_environment"]

_SECRETS: Final = ("DSORT_DATABASE_URL", "DSORT_TOKEN")


def outside_environment() -> dict[str, str]:
    """That of this process, without what lets somebody act as a service or as its user."""
    return {key: value for key, value in os.environ.items() if key not in _SECRETS}


def code_environment(more: Mapping[str, str]) -> dict[str, str]:
    """That of a process of user code: as many threads for algebra as it has CPUs, for there is one
    such process a core. ``more``: what it is told besides."""
    return {"OMP_NUM_THREADS": "1", **outside_environment(), **more}
