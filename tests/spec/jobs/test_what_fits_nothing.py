"""Extensions and lists of keys that fit no record are reported: they are most likely misspelt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.datasets import Shard, write_shards
from tests.support.engine import record, run_local, spec_of

pytestmark = pytest.mark.usefixtures("workers_here")


def steps(*given: dict[str, Any]) -> dict[str, Any]:
    return {"transform": {"steps": list(given)}}


@pytest.mark.sample(keep=10)
@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (steps({"fields": {"keep": ["jpg", "txt"]}}), "fields: txt"),
        (steps({"fields": {"drop": ["jgp"], "rename": {"cls": "class"}}}), "fields: jgp"),
        (steps({"fields": {"rename": {"class": "cls"}}}), "fields: class"),
        (steps({"fields": {"keep": ["jpg", "new:cls"]}}), ""),
        (steps({"drop_keys": {"keys": ["x", "y"]}}), "drop_keys: its keys"),
        (steps({"drop_keys": {"keys": ["x", "b"]}}), ""),
        (steps({"keep_keys": {"keys": ["a"]}}), ""),
        ({"deduplicate": {"by": "content", "extensions": ["jpg", "png"]}}, "deduplicate: png"),
        ({"deduplicate": {"by": "content"}}, ""),
        ({}, ""),
    ],
)
@pytest.mark.parametrize("move", ["map", "spill"])
def test_lists_that_fit_no_record_are_reported_once(
    fields: dict[str, Any], told: str, move: str, tmp_path: Path
) -> None:
    """Whichever shard it is that something fits."""
    one = Shard((*record("a", "jpg", "cls"), *record("b", "jpg", "cls")))
    write_shards(tmp_path / "in", {"a.tar": one, "b.tar": Shard(tuple(record("c", "jpg", "cls")))})
    report = run_local(tmp_path, spec_of(**fields), move=move)
    found = [text for text in report.warnings if "that no record has" in text]
    text = f"the spec lists keys or extensions that no record has: {told}"
    assert found == ([text] if told else [])
    assert not [each for each in report.reactions if each.kind.startswith("fits")]
