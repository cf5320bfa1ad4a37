"""The distribution of this code, and its extras. It is ``dsort-shards`` with the import name
``dsort``, or ``dsort-client``, which has some of these modules under the import name
``dsort_client`` and uses a service.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Final

from dsort.errors import SpecError

__all__ = ["COMMAND", "EXTRAS", "FULL", "PART", "is_part", "missing_part", "need_extra", "needing"]

FULL: Final = "dsort-shards"
PART: Final = "dsort-client"
COMMAND: Final = "dsort" if __name__.startswith("dsort.") else PART
"""The command that this distribution installs."""

EXTRAS: Final[Mapping[str, tuple[str, ...]]] = {
    "client": ("httpx", "httpx_sse"),
    "clouds": ("obstore",),
    "loader": ("PIL",),
    "lz4": ("lz4",),
    "service": (
        "alembic",
        "cronsim",
        "fastapi",
        "pg8000",
        "prometheus_client",
        "sqlalchemy",
        "uvicorn",
    ),
}
"""The modules that each extra of ``dsort-shards`` brings."""


def is_part() -> bool:
    """Whether this is ``dsort-client``."""
    return COMMAND == PART


def missing_part(command: str, *, takes_a_service: bool) -> SpecError:
    """The error for a command that ``dsort-client`` cannot run. ``takes_a_service``: whether
    ``dsort-client`` can run the command if a service is named."""
    where = " without a service" if takes_a_service else ""
    hint = f"`pip install {FULL}` installs it, beside {PART}"
    if takes_a_service:
        hint = f"name a service with --server URL or DSORT_SERVER; or {hint}"
    return SpecError(f"`{command}`{where} is for {FULL}, and this is {PART}", hint=hint)


def need_extra(extra: str) -> None:
    """``SpecError`` with a command that installs ``extra``, unless its packages are installed."""
    missing = [name for name in EXTRAS[extra] if find_spec(name) is None]
    if missing:
        raise _missing_extra(extra, f"the {extra} part of dsort", missing)


@contextmanager
def needing(extra: str, what: str) -> Iterator[None]:
    """For a body that imports packages of ``extra``, which ``what`` needs: if they are missing,
    ``SpecError`` names the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in EXTRAS[extra]:
            raise
        raise _missing_extra(extra, what, [error.name or ""]) from None


def _missing_extra(extra: str, what: str, missing: list[str]) -> SpecError:
    return SpecError(
        f"this needs {what}, which is not installed "
        f"({', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing)",
        hint=f"`pip install '{FULL}[{extra}]'` installs it",
    )
