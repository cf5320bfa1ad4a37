"""Whether this process belongs to the command alone, as that of ``dsort start`` does, or to a
program that calls ``main``. A process of the command alone can fork safely."""

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
"""The module that looks for pydantic's plugins. It loads ``importlib.metadata``, and with that
``email``. If a version of pydantic has no module of this name, the variable alone has the
effect."""

_is_own = False


def own_process() -> None:
    """Record that this process belongs to the command alone."""
    global _is_own
    _is_own = True


def is_own_process() -> bool:
    """Whether this process belongs to the command alone."""
    return _is_own


@contextlib.contextmanager
def without_plugins() -> Iterator[None]:
    """Build pydantic's models in this context without looking for its plugins in all installed
    packages, which takes a sixth of the time of a small job. The variable for that is removed
    afterwards, so that child processes do not get it, and models that are built later, as those of
    a user's code, get their plugins."""
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
    """Replaces pydantic's loader of plugins."""

    def get_plugins(self) -> tuple[()]:
        """No plugins."""
        return ()
