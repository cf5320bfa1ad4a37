"""Whether this process is the command's own, as that of ``dsort start`` is, or that of somebody who
calls ``main``. Nothing in an own process minds a fork."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Final

__all__ = ["is_own_process", "own_process", "without_plugins"]

PLUGINS: Final = "PYDANTIC_DISABLE_PLUGINS"
PLUGIN_LOADER: Final = "pydantic.plugin._loader"
"""The module that looks for them. It loads ``importlib.metadata``, and with that ``email``. If a
version of pydantic has none of this name, the variable alone does it."""

_is_own = False


def own_process() -> None:
    """Note that this process belongs to the command alone."""
    global _is_own
    _is_own = True


def is_own_process() -> bool:
    """Whether this process belongs to the command alone."""
    return _is_own


@contextlib.contextmanager
def without_plugins() -> Iterator[None]:
    """Build pydantic's models here without looking for plugins of it in all installed packages: a
    sixth of what a small job takes. The variable for that is not left to children, and models that
    are built later, as those of a user's code, get their plugins."""
    if not _is_own or PLUGINS in os.environ:
        yield
        return
    no_loader = _NoLoader(PLUGIN_LOADER)
    os.environ[PLUGINS] = "__all__"
    sys.modules.setdefault(PLUGIN_LOADER, no_loader)
    try:
        yield
    finally:
        os.environ.pop(PLUGINS, None)
        if sys.modules.get(PLUGIN_LOADER) is no_loader:
            del sys.modules[PLUGIN_LOADER]


class _NoLoader(ModuleType):
    """Stands in for pydantic's loader of plugins."""

    def get_plugins(self) -> tuple[()]:
        """None."""
        return ()
