"""Faults that a test has put somewhere, and that have to strike before it ends: a crash test whose
fault cannot strike any more, because what it was put into has another name now, has to fail.

A test that arms a fault in this process says by which file it will be seen to have struck; after
each test ``tests/conftest.py`` looks for these files.
"""

from __future__ import annotations

from pathlib import Path


class NoSuchPointError(LookupError):
    """A fault is to strike where dsort has nothing: a test with it could not fail."""


_expected: dict[Path, tuple[Path, str]] = {}
_missed: list[str] = []


def expect(what: str, mark: Path, *, of: Path) -> None:
    """``what`` has struck once the file ``mark`` is there. ``of``: where the fault was put."""
    _expected[mark] = (of, what)


def close(of: Path) -> None:
    """The faults that were put into ``of`` are about to be taken away: they strike no more."""
    for mark, (owner, what) in list(_expected.items()):
        if owner == of:
            del _expected[mark]
            if not mark.exists():
                _missed.append(what)


def missed() -> list[str]:
    """All that was expected and has not struck; from here on nothing is expected."""
    for owner in {owner for owner, _ in _expected.values()}:
        close(owner)
    found = _missed.copy()
    _missed.clear()
    return found
