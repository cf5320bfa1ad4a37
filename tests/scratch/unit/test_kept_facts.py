"""A fact that an earlier attempt kept is used whole, or the job is not resumed."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from dsort.errors import StorageError
from tests.support.internals import Fact


def job_that_kept(kept: object) -> Any:
    files = {"found.json": json.dumps(kept).encode(), "rows.col": b"rows"}
    return SimpleNamespace(job_id="1", attempt=SimpleNamespace(retained=files.get))


@pytest.mark.parametrize("files", [{}, {"other.col": "0"}])
def test_a_fact_without_its_file_is_damaged(files: dict[str, str]) -> None:
    fact = Fact("found.json", None, checks={"rows.col": lambda data, what: None})
    with pytest.raises(StorageError):
        fact.before(job_that_kept({"value": None, "files": files}))


def test_a_fact_may_lack_a_file_that_it_does_not_need() -> None:
    checks = {"rows.col": lambda data, what: None}
    fact = Fact("found.json", int, checks=checks, may_lack_files=True)
    assert fact.before(job_that_kept({"value": 7, "files": {}})) == (7,)
