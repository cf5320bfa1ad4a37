"""Which Ray dsort runs on: one that asks whoever comes for a token."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

from dsort.errors import WorkerLostError

__all__ = ["RAY_VERSION_MIN", "check_ray_version"]

RAY_VERSION_MIN = (2, 52)
"""The first that refuses who has no token, or a wrong one. Before, whoever reaches a port of a Ray
has it run what they like."""


def check_ray_version(found: str = "") -> None:
    """``WorkerLostError`` if Ray is too old to be locked. ``found``: its version, if it is not the
    one that is installed."""
    try:
        found = found or version("ray")
    except PackageNotFoundError:
        raise WorkerLostError("Ray is not installed", hint=f"pip install {_required()}") from None
    numbers = re.match(r"(\d+)\.(\d+)", found)
    if numbers is None or tuple(map(int, numbers.groups())) < RAY_VERSION_MIN:
        raise WorkerLostError(
            f"Ray {found} is too old: it runs code for whoever reaches its ports, and knows no "
            "tokens",
            hint=f"pip install {_required()}, on all nodes of a cluster; without Ray nothing of it "
            "is used",
        )


def _required() -> str:
    return f"'ray>={'.'.join(map(str, RAY_VERSION_MIN))}'"
