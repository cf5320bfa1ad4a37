"""dsort_client sends jobs to a dsort service, and reads their states and results:
``dsort_client.Client("https://dsort.example.com").submit("spec.yaml")``.

Names are loaded when they are first used. All classes are dsort_client's own: ``dsort.Client`` of
``dsort-shards`` raises the errors of ``dsort``."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from dsort_client.builder import *  # noqa: F403
    from dsort_client.client import *  # noqa: F403
    from dsort_client.client import DsortClient
    from dsort_client.errors import *  # noqa: F403
    from dsort_client.results.report import JobReport as JobReport

    Client = DsortClient
    __version__: str

_MODULES: Final = ("errors", "client", "builder")
"""The modules whose public names are here."""
_OTHERS: Final = {
    "Client": ("client", "DsortClient"),
    "JobReport": ("results.report", "JobReport"),
    "__version__": ("version", "VERSION"),
}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used."""
    if name in _OTHERS:
        module, attribute = _OTHERS[name]
        return getattr(import_module(f"{__name__}.{module}"), attribute)
    for each in () if name.startswith("_") else _MODULES:
        found = import_module(f"{__name__}.{each}")
        if name in found.__all__:
            return getattr(found, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, loaded or not, and the names that every module has."""
    special = (name for name in globals() if name.startswith("__"))
    public = (import_module(f"{__name__}.{each}").__all__ for each in _MODULES)
    return sorted({*special, *_OTHERS, *(name for names in public for name in names)})
