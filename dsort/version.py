"""The version of dsort."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

__all__ = ["dsort_version"]


def dsort_version() -> str:
    """The version of the installed package."""
    try:
        return version("dsort")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "0+source"
