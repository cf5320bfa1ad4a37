"""``dsort verify`` sees a bug of an operator, for it uses none of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dsort import api
from dsort.options import RunOptions
from tests.support.datasets import Member, Shard, write_shards
from tests.support.engine import run_local, spec_of
from tests.support.internals import (
    BytesColumn,
    Int64s,
    MemberTable,
    RecordTable,
    manifest_name,
    member_names,
)
from tests.support.results import kinds

pytestmark = pytest.mark.usefixtures("workers_here")

NAMES = ("a.jpg", "b.jpg", "c.jpg", "../d.jpg")


def lose_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    change_copies(monkeypatch, -1)


def repeat_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    change_copies(monkeypatch, 1)


def change_copies(monkeypatch: pytest.MonkeyPatch, more: int) -> None:
    """The second record of each shard comes out so many times more."""
    whole = RecordTable.with_copies

    def mutant(self: RecordTable, counts: Int64s, *, named: bool) -> tuple[RecordTable, Int64s]:
        wrong = counts.copy()
        wrong[1] += more
        return whole(self, wrong, named=named)

    monkeypatch.setattr(RecordTable, "with_copies", mutant)


def swap_two_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first two members with new headers have each other's."""
    whole = member_names._with_literals

    def mutant(shard: Any, members: MemberTable, named: MemberTable, rows: Int64s) -> MemberTable:
        names = named.names.tolist()
        first, second = rows[:2].tolist()
        names[first], names[second] = names[second], names[first]
        wrong = replace(named, names=BytesColumn.of(names))
        return replace(whole(shard, members, wrong, rows), names=named.names)

    monkeypatch.setattr(member_names, "_with_literals", mutant)


def leave_unsafe_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsort.workers.operators.member_names.unsafe_rows", lambda names: [])


def no_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    pass


COPIES = {"inputs": [{"name": "it", "input_bck": "in", "repeat": 2}]}
LONG_KEYS = {"input_bck": "in", "transform": {"steps": [{"rekey": "x" * 120 + "{key}"}]}}
SAFE_NAMES = {"input_bck": "in", "Config": {"unsafe_names": "rename"}}


@pytest.mark.parametrize(
    ("mutant", "fields", "wanted"),
    [
        (no_bug, COPIES, []),
        (lose_a_copy, COPIES, ["counts", "missing_record"]),
        (repeat_a_copy, COPIES, ["counts", "foreign_record"]),
        (no_bug, LONG_KEYS, []),
        (swap_two_names, LONG_KEYS, ["changed_bytes"]),
        (no_bug, SAFE_NAMES, []),
        (leave_unsafe_names, SAFE_NAMES, ["foreign_record", "missing_record"]),
    ],
)
def test_bugs_of_operators_are_reported(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mutant: Callable[[pytest.MonkeyPatch], None],
    fields: dict[str, Any],
    wanted: list[str],
) -> None:
    members = tuple(Member(name, name.encode()) for name in NAMES)
    write_shards(tmp_path / "in", {"s.tar": Shard(members)})
    spec = {name: value for name, value in spec_of().items() if name != "input_bck"}
    mutant(monkeypatch)
    report = run_local(tmp_path, {**spec, **fields, "output_shard_records": 20})
    manifest = (tmp_path / "out" / manifest_name(report.job_id)).read_bytes()
    assert kinds(api.verify(manifest, options=RunOptions(root=tmp_path))) == wanted
