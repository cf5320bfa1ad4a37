"""A result that replaces one of more shards: what is left of the older one is told before a byte is
read if that can be known, and with ``remove_stale`` it is removed once the new one is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dsort.errors import CorruptShardError, SpecError
from dsort.reports import Event, JobWarning, PhaseDone
from dsort.spec.load import parse_spec
from tests.support.datasets import files_of, small_dataset, write_shards
from tests.support.engine import run_local, spec_of

DATASET = small_dataset("stale", shards=2, records=12)
FEWER = {"overwrite": True, "output_shard_records": 10}  # three shards, instead of six
COUNTED = {"overwrite": True, "output_shard_records": None, "output_shard_count": 3}


def spec_with(**fields: Any) -> dict[str, Any]:
    spec = {"output_shard_records": 4, **fields}
    return {name: value for name, value in spec_of(**spec).items() if value is not None}


def begin(root: Path) -> None:
    """A result of six shards, and what is not of it."""
    write_shards(root / "in", DATASET)
    run_local(root, spec_with())
    write_shards(root / "out", {"out-9.tar": b"mine", "out-x.tar": b"mine"})


def told(root: Path, spec: dict[str, Any]) -> list[str]:
    """Run the job; its warnings of what is stale."""
    events: list[Event] = []
    run_local(root, spec, on_event=events.append)
    return [each.text for each in events if isinstance(each, JobWarning) and "stale" in each.kind]


@pytest.mark.parametrize("fields", [FEWER, COUNTED])
def test_what_is_left_of_an_older_result_is_told(fields: dict[str, Any], tmp_path: Path) -> None:
    begin(tmp_path)
    (text,) = told(tmp_path, spec_with(**fields))
    assert "4 objects" in text
    assert "out-3.tar, out-4.tar, out-5.tar" in text
    assert "3 of a result that is replaced: --remove-stale" in text
    assert len(files_of(tmp_path / "out")) == 8


def test_it_is_told_before_a_byte_is_read_if_the_count_is_known(tmp_path: Path) -> None:
    begin(tmp_path)
    (tmp_path / "in" / "in-0.tar").write_bytes(b"this is no tar" * 1000)
    events: list[Event] = []
    with pytest.raises(CorruptShardError):
        run_local(tmp_path, spec_with(**COUNTED), on_event=events.append)
    assert any(isinstance(each, JobWarning) and each.kind == "stale_outputs" for each in events)


@pytest.mark.parametrize("fields", [FEWER, COUNTED])
def test_what_is_left_of_a_replaced_result_is_removed(
    fields: dict[str, Any], tmp_path: Path
) -> None:
    begin(tmp_path)
    left, removed = told(tmp_path, spec_with(remove_stale=True, **fields))
    assert "1 object has a name" in left
    assert "out-9.tar" in left
    assert removed == (
        "removed 3 objects of results that were replaced: out-3.tar, out-4.tar, out-5.tar"
    )
    names = {"out-0.tar", "out-1.tar", "out-2.tar", "out-9.tar", "out-x.tar"}
    assert set(files_of(tmp_path / "out")) == names
    assert (tmp_path / "out" / "out-9.tar").read_bytes() == b"mine"


def test_nothing_is_removed_that_is_not_of_a_replaced_result(tmp_path: Path) -> None:
    """Not what was changed since, not what another result lists, and nothing by what is no
    manifest."""
    begin(tmp_path)
    (tmp_path / "out" / "out-4.tar").write_bytes(b"changed since")
    run_local(tmp_path, spec_with(output_format="out-{20..29}"))
    for number, text in enumerate(("", "[]", '{"manifest": 1}', "[" * 100_000)):
        path = tmp_path / "out" / ".dsort" / f"3{number}" / "manifest.json"
        path.parent.mkdir()
        path.write_text(text)
    before = files_of(tmp_path / "out")
    told(tmp_path, spec_with(remove_stale=True, **FEWER))
    after = files_of(tmp_path / "out")
    assert set(before) - set(after) == {"out-3.tar", "out-5.tar"}


def test_nothing_is_removed_if_the_job_fails(tmp_path: Path) -> None:
    begin(tmp_path)
    before = files_of(tmp_path / "out")

    def listen(event: Event) -> None:
        if isinstance(event, PhaseDone) and event.phase == "create":
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_local(tmp_path, spec_with(remove_stale=True, **FEWER), on_event=listen)
    assert files_of(tmp_path / "out") == before


def test_it_goes_with_overwrite_only() -> None:
    with pytest.raises(SpecError, match="remove_stale: needs overwrite"):
        parse_spec(spec_with(remove_stale=True))


def test_the_command_line_has_it(tmp_path: Path, cli: Any) -> None:
    begin(tmp_path)
    fields = spec_with(output_shard_records=10)
    refused = cli("start", "-f", json.dumps(fields), "--remove-stale", "--workers", "1")
    assert (refused.code, "needs overwrite" in refused.err) == (2, True)
    arguments = ["-f", json.dumps(fields), "--overwrite", "--remove-stale", "--workers", "1"]
    ended = cli("start", *arguments)
    assert ended.code == 0, ended.err
    assert "removed 3 objects" in ended.err
