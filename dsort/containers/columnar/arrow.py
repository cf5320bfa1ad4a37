"""pyarrow, loaded when one of its names is first used: loading takes 0.1 s, and memory in each
worker, and jobs without tables do not need it."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class _Later:
    """A module, with its names once it is loaded."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        module = import_module(self._name)
        vars(self).update(vars(module))  # later names are found without a call
        return getattr(module, name)


pa: Any = _Later("pyarrow")
pc: Any = _Later("pyarrow.compute")
pq: Any = _Later("pyarrow.parquet")
