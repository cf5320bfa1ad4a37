"""The environment of what is not dsort's own: users' functions, programs and commands."""

from __future__ import annotations

import os
from typing import Final

__all__ = ["outside_environment"]

_SECRETS: Final = ("DSORT_DATABASE_URL", "DSORT_TOKEN")


def outside_environment() -> dict[str, str]:
    """That of this process, without what lets somebody act as a service or as its user."""
    return {key: value for key, value in os.environ.items() if key not in _SECRETS}
