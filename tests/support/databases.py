"""Tests that run on SQLite and on PostgreSQL, because their results depend on the database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

__all__ = ["on_both_databases"]


def on_both_databases(test: Callable[..., Any]) -> Callable[..., Any]:
    """Run the test once with each kind of ``database_url``. All other tests of the service run on
    SQLite alone."""
    kinds = pytest.mark.parametrize("database_url", ["sqlite", "postgres"], indirect=True)
    return pytest.mark.whole(kinds(test))  # type: ignore[no-any-return]
