"""What of dsort is installed: the distribution ``dsort-shards``, which is all of it, or
``dsort-client``, the part that speaks with a service; and the extras of the former.

Both have the import name ``dsort`` and the same files, as far as the smaller one has them. Where
both are installed, the last one has overwritten files of the other, perhaps by those of another
version, and to uninstall one takes files of both: so nothing works then until one is gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from dsort.errors import SpecError

__all__ = [
    "EXTRAS",
    "FULL",
    "PART",
    "is_mixed",
    "is_part",
    "missing_part",
    "mixed_words",
    "need_extra",
    "needing",
]

FULL: Final = "dsort-shards"
PART: Final = "dsort-client"
OF_CLIENT: Final = "dsort-client.txt"
"""A file that only the wheel of ``dsort-client`` has, in the package."""
INSTALL_FULL: Final = f"`pip uninstall {PART}`, then `pip install {FULL}`"

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

_HERE: Final = Path(__file__).parent


def is_part(package: Path = _HERE) -> bool:
    """Whether this is ``dsort-client`` alone. ``package``: the directory of dsort."""
    return (package / OF_CLIENT).exists() and not (package / "api.py").exists()


def is_mixed(package: Path = _HERE) -> bool:
    """Whether both distributions are installed in one place."""
    return (package / OF_CLIENT).exists() and (package / "api.py").exists()


def mixed_words() -> tuple[str, str]:
    """(what is wrong, what helps) where both are installed."""
    return (
        f"{FULL} and {PART} are both installed, and have the same files",
        f"{FULL} has all that {PART} has: `pip uninstall {PART}`, then "
        f"`pip install --force-reinstall --no-deps {FULL}`",
    )


def missing_part(command: str, *, takes_a_service: bool) -> SpecError:
    """The error for what ``dsort-client`` has not. ``command``: as ``dsort ls``;
    ``takes_a_service``: whether it has it where a service is named."""
    if takes_a_service:
        words = f"`{command}` without a service is for {FULL}, and this is {PART}"
        return SpecError(
            words, hint=f"name a service with --server URL or DSORT_SERVER; or {INSTALL_FULL}"
        )
    return SpecError(f"`{command}` is for {FULL}, and this is {PART}", hint=INSTALL_FULL)


def need_extra(extra: str) -> None:
    """``SpecError`` unless the packages of ``extra`` are installed; it says how to install them."""
    missing = [name for name in EXTRAS[extra] if find_spec(name) is None]
    if missing:
        raise _missing_extra(extra, f"the {extra} part of dsort", missing)


@contextmanager
def needing(extra: str, what: str) -> Iterator[None]:
    """Imports that ``what`` takes and ``extra`` brings: ``SpecError`` that names the extra if its
    packages are missing."""
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
