"""Whether this process is the command's own, as that of ``dsort start`` is, or that of somebody who
calls ``main``. Nothing in an own process minds a fork."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Final

__all__ = ["is_own_process", "own_process", "without_plugins"]

PLUGINS: Final = "PYDANTIC_DISABLE_PLUGINS"

_is_own = False


def own_process() -> None:
    """Say that this process is the command's, and nobody else's."""
    global _is_own
    _is_own = True


def is_own_process() -> bool:
    """Whether that was said."""
    return _is_own


@contextlib.contextmanager
def without_plugins() -> Iterator[None]:
    """Build pydantic's models here without looking for plugins of it in all installed packages: a
    sixth of what a small job takes. The variable for that is not left to children."""
    if not _is_own or PLUGINS in os.environ:
        yield
        return
    os.environ[PLUGINS] = "__all__"
    try:
        yield
    finally:
        os.environ.pop(PLUGINS, None)
