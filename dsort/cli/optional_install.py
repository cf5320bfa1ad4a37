"""What not every installation has: packages that only some verbs need."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

from dsort.errors import SpecError

__all__ = ["need"]

_PACKAGES: Mapping[str, tuple[str, ...]] = {
    "client": ("httpx", "httpx_sse"),
    "service": ("alembic", "apscheduler", "fastapi", "prometheus_client", "sqlalchemy", "uvicorn"),
}


def need(extra: str) -> None:
    """``SpecError`` that says how to install it, unless the packages of ``extra`` are there."""
    missing = [name for name in _PACKAGES[extra] if find_spec(name) is None]
    if missing:
        raise SpecError(
            f"this needs the {extra} part of dsort, which is not installed "
            f"({', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing)",
            hint=f"`pip install '.[{extra}]'` where dsort's source is installs it",
        )
