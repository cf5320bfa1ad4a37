"""Whether this process is the command's own, as that of ``dsort start`` is, or that of somebody who
calls ``main``. Nothing in an own process minds a fork."""

from __future__ import annotations

__all__ = ["is_own_process", "own_process"]

_is_own = False


def own_process() -> None:
    """Say that this process is the command's, and nobody else's."""
    global _is_own
    _is_own = True


def is_own_process() -> bool:
    """Whether that was said."""
    return _is_own
