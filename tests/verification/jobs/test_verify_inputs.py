"""``dsort verify`` and the inputs: what they prove once they have changed, what reactions to
duplicate keys make of them, and that a bug of an operator is seen."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

import dsort
from dsort import api
from dsort.errors import InvariantError
from dsort.options import RunOptions
from tests.support.datasets import Member, Shard, small_dataset, write_shards
from tests.support.engine import run_local, spec_of
from tests.support.internals import (
    BytesColumn,
    Event,
    Int64s,
    JobWarning,
    MemberTable,
    RecordTable,
    manifest_name,
    member_names,
)
from tests.support.results import (
    BY_KEY,
    SHUFFLE,
    FinishedJob,
    drop_last,
    finished_job,
    kinds,
    ordinary,
    swap_neighbours,
)

pytestmark = pytest.mark.usefixtures("workers_here")


def file(name: str, text: str = "x", **more: str) -> Member:
    return Member(name, text.encode(), **more)


def warnings_of(job: FinishedJob) -> list[JobWarning]:
    events: list[Event] = []
    report = job.verify(on_event=events.append)
    warned = [event for event in events if isinstance(event, JobWarning)]
    assert report.warnings == tuple(event.text for event in warned)
    assert report.ok
    return warned


def test_without_an_input_the_outputs_are_verified_alone(tmp_path: Path) -> None:
    job = ordinary(tmp_path, BY_KEY)
    (job.inputs / "in-1.tar").unlink()
    (warning,) = warnings_of(job)
    assert warning.kind == "changed_inputs"
    assert "1 of 3 input shards are gone (in-1.tar)" in warning.text
    assert "not compared" in warning.text
    swap_neighbours(job)
    path = job.outputs / job.names[0]
    data = bytearray(path.read_bytes())
    data[-1025] ^= 1  # in the padding of the last member
    path.write_bytes(data)
    assert kinds(job.verify()) == ["checksum", "order"]


def test_without_the_whole_input_bucket_the_outputs_are_verified_alone(tmp_path: Path) -> None:
    job = ordinary(tmp_path, {**SHUFFLE, "index": "wids"})
    shutil.rmtree(job.inputs)
    (warning,) = warnings_of(job)
    assert "3 of 3 input shards are gone (in-0.tar, in-1.tar, in-2.tar)" in warning.text
    drop_last(job)
    assert kinds(job.verify()) == ["index"]  # which alone can tell


def test_an_input_of_another_size_proves_nothing(tmp_path: Path) -> None:
    job = ordinary(tmp_path, SHUFFLE)
    with (job.inputs / "in-2.tar").open("ab") as shard:
        shard.write(bytes(512))
    (warning,) = warnings_of(job)
    assert (
        "1 of 3 input shards have another size than at the time of the job (in-2.tar)"
        in warning.text
    )


def test_inputs_that_were_only_moved_are_compared_all_the_same(tmp_path: Path) -> None:
    job = ordinary(tmp_path, SHUFFLE)
    shutil.copytree(job.inputs, tmp_path / "copy")
    shutil.rmtree(job.inputs)
    (tmp_path / "copy").rename(job.inputs)
    (warning,) = warnings_of(job)
    assert "3 of 3 input shards were written or moved" in warning.text
    drop_last(job)
    assert kinds(job.verify()) == ["missing_record"]


@pytest.mark.parametrize("duplicates", ["warn", "rename"])
def test_an_input_whose_tail_was_zeroed_since_is_a_problem(duplicates: str, tmp_path: Path) -> None:
    job = ordinary(tmp_path, {**SHUFFLE, "Config": {"duplicate_keys": duplicates}})
    path = job.inputs / "in-1.tar"
    data = path.read_bytes()
    assert len(data) > 3 * 4096
    path.write_bytes(data[:4096].ljust(len(data), b"\0"))
    report = job.verify()
    assert kinds(report)[0] == "incomplete_shard"
    assert report.problems[0].shard == "in-1.tar"
    assert "may not be whole" in report.problems[0].text


def test_a_changed_byte_of_an_input_is_a_difference_with_a_warning(tmp_path: Path) -> None:
    job = ordinary(tmp_path, SHUFFLE)
    path = job.inputs / "in-0.tar"
    data = bytearray(path.read_bytes())
    data[600] ^= 1
    path.write_bytes(data)
    report = job.verify()
    assert kinds(report) == ["changed_bytes"]
    assert "in-0.tar" in report.problems[0].text
    assert "in-0.tar" in report.warnings[0]


def test_an_input_that_became_corrupt_is_named(tmp_path: Path) -> None:
    job = ordinary(tmp_path, SHUFFLE)
    path = job.inputs / "in-0.tar"
    path.write_bytes(b"?" * path.stat().st_size)
    (problem,) = job.verify().problems
    assert (problem.kind, problem.shard) == ("corrupt_shard", "in-0.tar")
    assert problem.text.startswith("input: ")


def test_shards_that_came_later_are_reported(tmp_path: Path) -> None:
    job = ordinary(tmp_path, SHUFFLE)
    shutil.copy(job.inputs / "in-0.tar", job.inputs / "in-9.tar")
    shutil.copy(job.inputs / "in-0.tar", job.outputs / "out-007.tar")
    shutil.copy(job.inputs / "in-0.tar", job.outputs / "other-007.tar")
    texts = {warning.kind: warning.text for warning in warnings_of(job)}
    assert (
        texts["other_inputs"]
        == "shards that the spec names were no inputs of the job (1): in-9.tar"
    )
    assert "but are not of this job (1): out-007.tar" in texts["other_shards"]
    assert len(texts) == 2


def test_a_job_in_one_bucket_is_no_stranger_to_itself(tmp_path: Path) -> None:
    job = finished_job(tmp_path, small_dataset(1), {**SHUFFLE, "output_bck": "in"})
    assert warnings_of(job) == []


def with_duplicates(reaction: str) -> tuple[dict[str, Shard], dict[str, Any]]:
    shards = {
        "in-0.tar": Shard((file("a.jpg", "1"), file("b.jpg", "2"))),
        "in-1.tar": Shard((file("a.jpg", "3"), file("c.jpg", "4"))),
    }
    spec = {
        "output_shard_size": "1MB",
        "algorithm": {"kind": "none"},
        "Config": {"duplicate_keys": reaction},
    }
    return shards, spec


@pytest.mark.parametrize("reaction", ["drop", "rename"])
def test_duplicates_have_to_be_settled_as_the_spec_says(tmp_path: Path, reaction: str) -> None:
    """A result that keeps them is given a manifest that says they were dropped or renamed."""
    job = finished_job(tmp_path, *with_duplicates("ignore"))
    assert job.verify().ok
    job.edit(lambda manifest: manifest["spec"].update(duplicate_keys=reaction))
    report = job.verify()
    expected = {"drop": ["undropped_record"], "rename": ["foreign_record", "missing_record"]}
    assert kinds(report) == expected[reaction]
    assert report.problems[0].record == "a"


def test_a_renamed_record_is_compared_under_its_new_name(tmp_path: Path) -> None:
    job = finished_job(tmp_path, *with_duplicates("rename"))
    path = job.outputs / job.names[0]
    data = path.read_bytes()
    assert data.count(b"a-1.jpg") == 1
    at = data.index(b"a-1.jpg") + 512
    assert data[at : at + 1] == b"3"
    path.write_bytes(data[:at] + b"9" + data[at + 1 :])
    _, problem = job.verify().problems
    assert (problem.kind, problem.record) == ("changed_bytes", "a-1")
    assert problem.text == "a-1.jpg has other bytes than in the input shard in-1.tar"


@pytest.mark.parametrize("reaction", ["drop", "rename", "abort"])
def test_a_key_twice_is_found_without_inputs(tmp_path: Path, reaction: str) -> None:
    job = finished_job(tmp_path, *with_duplicates("ignore"))
    job.edit(lambda manifest: manifest["spec"].update(duplicate_keys=reaction))
    (job.inputs / "in-0.tar").unlink()
    report = job.verify()
    assert kinds(report) == ["duplicate_key"]
    assert [(each.shard, each.record) for each in report.problems] == [("out-000.tar", "a")]


def test_an_abort_that_should_have_been_is_found(tmp_path: Path) -> None:
    job = finished_job(tmp_path, *with_duplicates("ignore"))
    job.edit(lambda manifest: manifest["spec"].update(duplicate_keys="abort"))
    assert kinds(job.verify()) == ["duplicate_key"]


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
        (lose_a_copy, COPIES, None),
        (repeat_a_copy, COPIES, None),
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
    wanted: list[str] | None,
) -> None:
    """Of some, the job itself finds that its tables do not fit (None)."""
    members = tuple(Member(name, name.encode()) for name in NAMES)
    write_shards(tmp_path / "in", {"s.tar": Shard(members)})
    spec = {name: value for name, value in spec_of().items() if name != "input_bck"}
    mutant(monkeypatch)
    spec |= {**fields, "output_shard_records": 20}
    if wanted is None:
        with pytest.raises(InvariantError):
            run_local(tmp_path, spec)
        return
    report = run_local(tmp_path, spec)
    manifest = (tmp_path / "out" / manifest_name(report.job_id)).read_bytes()
    assert kinds(api.verify(manifest, options=RunOptions(root=tmp_path))) == wanted


@pytest.mark.parametrize("reaction", ["drop", "abort"])
def test_copies_of_records_without_keys_are_no_duplicates(tmp_path: Path, reaction: str) -> None:
    (tmp_path / "in").mkdir()
    for shard in range(2):
        (tmp_path / "in" / f"s-{shard}.jsonl").write_text(f'{{"a": {shard}}}\n{{"b": 1}}\n')
    spec = {name: value for name, value in spec_of().items() if name != "input_bck"}
    copies = {"name": "it", "input_bck": "in", "input_extension": ".jsonl", "repeat": 3}
    report = run_local(tmp_path, {**spec, "inputs": [copies], "duplicate_keys": reaction})
    manifest = (tmp_path / "out" / manifest_name(report.job_id)).read_bytes()
    assert report.records == 12
    assert kinds(api.verify(manifest, options=RunOptions(root=tmp_path))) == []


def test_the_hash_of_a_shuffle_among_keys_is_named_where_it_is_not_heeded(tmp_path: Path) -> None:
    keys = [f"{number:02d}" for number in range(8)]
    members = [Member(f"{key}.cls", b"1") for key in keys]
    write_shards(tmp_path / "in", {"in-0.tar": Shard(tuple(members))})
    by_class = {"kind": "content", "extension": ".cls", "content_key_type": "int"}
    order = {"seed": 3, "keys": [by_class, {"kind": "shuffle"}]}
    report = run_local(tmp_path, spec_of(algorithm=order, output_shard_records=4))
    one, two = (tmp_path / "out" / f"out-{number}.tar" for number in (0, 1))
    data = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(data)
    found = dsort.verify(report, options=RunOptions(root=tmp_path))
    texts = [each.text for each in found.problems if each.kind == "order"]
    assert ["shuffle" in text for text in texts] == [True] * len(texts) != []


@pytest.mark.parametrize("changed", ["k3", "k5"], ids=["of nulls", "with a value"])
def test_a_changed_key_of_a_row_is_a_difference(tmp_path: Path, changed: str) -> None:
    (tmp_path / "in").mkdir()
    table = pa.table({"id": ["k3", "k5", "k8"], "label": [None, True, None]})
    pq.write_table(table, tmp_path / "in" / "in-0.parquet")
    report = run_local(tmp_path, spec_of(input_extension=".parquet", key_field="id"))
    path = tmp_path / "out" / "out-0.parquet"
    keys = pq.read_table(path)["id"].to_pylist()
    names = ["k9" if key == changed else key for key in keys]
    pq.write_table(pq.read_table(path).set_column(0, "id", pa.array(names)), path)
    found = dsort.verify(report, options=RunOptions(root=tmp_path))
    assert {"foreign_record", "missing_record"} < set(kinds(found))
