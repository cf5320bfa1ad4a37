"""Errors that tests expect: by class, by their fields, and by the names in their messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

from dsort.errors import SpecError

Error = TypeVar("Error", bound=BaseException)
ANY: Any = object()


@contextmanager
def raises(
    kind: type[Error], *named: str, hint: str = "", paths: Sequence[str] = ANY, **fields: Any
) -> Iterator[pytest.ExceptionInfo[Error]]:
    """The body must end in an error of this very class with these ``fields``. Its message has
    ``named`` in it, and its hint ``hint``: names, numbers, paths and options, never prose. A
    ``SpecError`` has its problems at ``paths``."""
    with pytest.raises(kind) as caught:
        yield caught
    error = caught.value
    assert type(error) is kind, error
    assert [name for name in named if name not in str(error)] == [], error
    assert hint in getattr(error, "hint", ""), error
    assert {name: getattr(error, name) for name in fields} == fields, error
    if paths is not ANY:
        assert isinstance(error, SpecError)
        assert [problem.path for problem in error.problems] == list(paths), error
