"""Faults that a test has armed, and that have to strike before the test ends. Without this check, a
crash test would pass without a crash once the function with its fault has another name.

A test that arms a fault in this process names the file that exists once the fault has struck. After
each test, ``tests/conftest.py`` looks for these files.
"""

from __future__ import annotations

from pathlib import Path


class NoSuchPointError(LookupError):
    """A fault names a function or class that dsort does not have: it could never strike."""


_expected: dict[Path, tuple[Path, str]] = {}
_missed: list[str] = []


def expect(what: str, mark: Path, *, of: Path) -> None:
    """Expect that the fault ``what`` creates the file ``mark`` when it strikes. ``of``: the
    directory in which the fault is armed."""
    _expected[mark] = (of, what)


def close(of: Path) -> None:
    """End the wait for the faults in ``of``, which are removed now. Those that have not struck are
    missed."""
    for mark, (owner, what) in list(_expected.items()):
        if owner == of:
            del _expected[mark]
            if not mark.exists():
                _missed.append(what)


def missed() -> list[str]:
    """The expected faults that have not struck. From here on no fault is expected."""
    for owner in {owner for owner, _ in _expected.values()}:
        close(owner)
    found = _missed.copy()
    _missed.clear()
    return found
