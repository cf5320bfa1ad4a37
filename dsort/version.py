"""The version of dsort: the only place that has it.

The metadata of the installed distribution may be older than a checkout, so they are not read.
"""

from __future__ import annotations

__all__ = ["VERSION", "dsort_version"]

VERSION = "0.1.0"


def dsort_version() -> str:
    """The version of this code."""
    return VERSION
