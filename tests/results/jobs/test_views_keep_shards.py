"""Shards to which a view points are replaced and removed only with ``force``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsort import api
from dsort.errors import NamesTakenError
from dsort.options import RunOptions
from tests.support.datasets import files_of, small_dataset, write_shards
from tests.support.engine import run_local, spec_of
from tests.support.refusals import raises

pytestmark = pytest.mark.usefixtures("workers_here")

VIEW = spec_of(input_bck="out", input_format="out-{0..3}.tar", output="view", output_format="v-%d")
Change = Callable[[Path, bool], Any]


def replace_shards(root: Path, force: bool) -> Any:
    return run_local(root, spec_of(overwrite=True), force=force)


def remove_stale_shards(root: Path, force: bool) -> Any:
    fewer = {"output_shard_records": 10, "overwrite": True, "remove_stale": True}
    return run_local(root, spec_of(**fewer), force=force)


def remove_a_record(root: Path, force: bool) -> Any:
    (first, *_) = sorted((root / "out").glob("**/manifest.json"))
    (root / "keys.txt").write_text("00007\n")
    options = RunOptions(root=root, workers=1, force=force)
    return api.remove(first, root / "keys.txt", options=options)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A result of four shards, and a view in its bucket that points to them."""
    write_shards(tmp_path / "in", small_dataset("viewed", shards=2, records=10))
    run_local(tmp_path, spec_of())
    run_local(tmp_path, VIEW)
    return tmp_path


@pytest.mark.parametrize("change", [replace_shards, remove_stale_shards, remove_a_record])
def test_shards_to_which_a_view_points_stay_unless_forced(change: Change, root: Path) -> None:
    before = files_of(root / "out")
    with raises(NamesTakenError, "out-", "of job"):
        change(root, False)
    assert files_of(root / "out") == before

    change(root, True)
