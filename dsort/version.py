"""The version of dsort: the only place that has it.

Not asked of what is installed, for a checkout may be newer than what its environment knows of it.
"""

from __future__ import annotations

__all__ = ["VERSION", "dsort_version"]

VERSION = "0.1.0"


def dsort_version() -> str:
    """The version of this code."""
    return VERSION
