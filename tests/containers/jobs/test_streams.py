"""Jobs in a pipeline: a shard comes in on standard input, one goes out on standard output, and
programs write what is read."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

import dsort
from dsort.errors import InputError, JobStoppedError, StorageError, StorageFullError
from dsort.options import RunOptions
from dsort.spec.load import parse_spec
from dsort.stop_flag import StopFlag
from tests.support.commands import ROOT, CommandLine
from tests.support.datasets import END, files_of, read_shard, write_shards
from tests.support.engine import record, run_local, shard_of
from tests.support.internals import programs, streams
from tests.support.refusals import raises

pytestmark = pytest.mark.usefixtures("workers_here")

SHUFFLE = {"kind": "shuffle", "seed": 7}
TO_A_BUCKET = {"output_bck": "out", "output_format": "o-%d", "output_shard_records": 3}


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


def give(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    """Have ``data`` on standard input."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))


def record_keys(data: bytes) -> list[str]:
    return list(dict.fromkeys(member.name.split(".")[0] for member in read_shard(data)))


def run(root: Path, fields: dict[str, Any], **named: Any) -> Any:
    options = RunOptions(root=root, workers=1, scratch=root / "scratch")
    return dsort.run(parse_spec(fields).spec, options=options, **named)


def test_a_stream_comes_out_as_one_shard_with_every_record(
    tmp_path: Path,
    scratch: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    shard = shard_of("a", "b", "c", "d")
    give(monkeypatch, shard.data)
    report = run(tmp_path, {"input": "-", "output": "-", "algorithm": SHUFFLE})
    out = capfdbinary.readouterr().out
    assert sorted(record_keys(out)) == ["a", "b", "c", "d"]
    assert sorted(m.raw for m in shard.members) == sorted(
        out[at : at + 1024] for at in range(0, len(out) - len(END), 1024)
    )
    assert (report.output_uri, report.manifest_name, report.records) == ("-", None, 4)
    assert list(scratch.iterdir()) == []


def test_a_stream_goes_into_a_bucket_and_its_result_is_verified(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(monkeypatch, shard_of(*"abcdefg").data)
    report = run(tmp_path, {"input": "-", **TO_A_BUCKET, "algorithm": SHUFFLE})
    first = files_of(tmp_path / "out")
    assert [len(record_keys(data)) for data in first.values()] == [3, 3, 1]
    manifest = (tmp_path / "out" / report.manifest_name).read_bytes()
    verified = dsort.verify(manifest, options=RunOptions(root=tmp_path))
    assert verified.problem_count == 0
    assert "the job read a stream" in verified.warnings[0]
    give(monkeypatch, shard_of(*"abcdefg").data)
    run(tmp_path, {"input": "-", **TO_A_BUCKET, "output_bck": "again", "algorithm": SHUFFLE})
    assert files_of(tmp_path / "again") == first


def test_a_stream_is_one_input_beside_others(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_shards(tmp_path / "in", {"s.tar": shard_of("x", "y")})
    give(monkeypatch, shard_of("a").data)
    inputs = [{"name": "new", "input_bck": "-"}, {"name": "old", "input_bck": "in"}]
    run(tmp_path, {"inputs": inputs, **TO_A_BUCKET, "algorithm": {"kind": "none"}})
    assert record_keys(files_of(tmp_path / "out")["o-0.tar"]) == ["a", "x", "y"]


def test_programs_write_the_shards_that_the_spec_names(tmp_path: Path, scratch: Path) -> None:
    write_shards(tmp_path / "in", {f"s-{n}.tar": shard_of(f"a{n}", f"b{n}") for n in range(3)})
    piped = {"pipe": ["cat", f"{tmp_path}/in/{{shard}}"]}
    fields = {"input_bck": piped, "input_format": {"template": "s-{0..2}"}, "algorithm": SHUFFLE}
    run(tmp_path, {**fields, **TO_A_BUCKET})
    run_local(tmp_path, {**fields, **TO_A_BUCKET, "input_bck": "in", "output_bck": "from-bucket"})
    assert files_of(tmp_path / "out") == files_of(tmp_path / "from-bucket")
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    ("program", "named"),
    [
        (["sh", "-c", "cat $0/in/s.tar; echo no such host >&2; exit 22"], "no such host"),
        (["sh", "-c", "cat $0/in/s.tar; kill -9 $$"], "signal 9"),
        (["no-such-program-at-all"], "no-such-program-at-all"),
    ],
)
def test_a_program_that_fails_fails_the_job_before_anything_is_written(
    program: list[str], named: str, tmp_path: Path, scratch: Path
) -> None:
    write_shards(tmp_path / "in", {"s.tar": shard_of("a", "b")})
    piped = {"pipe": [*program, str(tmp_path)]}
    with raises(InputError, named):
        run(tmp_path, {"input_bck": piped, **TO_A_BUCKET})
    assert not (tmp_path / "out").exists()
    assert list(scratch.iterdir()) == []


def test_a_program_that_hangs_is_ended_with_the_job(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []
    start = subprocess.Popen

    def started(words: Any, **named: Any) -> Any:
        process = start(words, **named)
        begun.append(process.pid)
        stop.request(15)
        return process

    monkeypatch.setattr(programs.subprocess, "Popen", started)
    with StopFlag() as stop, pytest.raises(JobStoppedError):
        run(tmp_path, {"input_bck": {"pipe": ["sleep", "600"]}, **TO_A_BUCKET}, stop=stop)
    with pytest.raises(ProcessLookupError):
        os.kill(begun[0], 0)
    assert list(scratch.iterdir()) == []


def test_a_stream_that_does_not_fit_on_the_disk_is_refused(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(monkeypatch, shard_of("a").data)
    monkeypatch.setattr(streams, "ROOM_BYTES_MIN", 1 << 62)
    with raises(StorageFullError, str(scratch)):
        run(tmp_path, {"input": "-", **TO_A_BUCKET})
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("data", [b"", shard_of("a", "b").data[:-1100], b"no tar at all" * 99])
def test_a_stream_that_is_cut_short_gives_nothing(
    data: bytes,
    tmp_path: Path,
    scratch: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    give(monkeypatch, data)
    with pytest.raises(InputError, match=r"stdin\.tar"):
        run(tmp_path, {"input": "-", "output": "-"})
    assert capfdbinary.readouterr().out == b""


def test_no_record_at_all_is_no_empty_stream(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(monkeypatch, shard_of("a").data)
    steps = {"steps": [{"filter": 'key == "x"'}]}
    with raises(InputError):
        run(tmp_path, {"input": "-", "output": "-", "transform": steps})


def test_what_a_process_that_died_had_spooled_is_removed(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = scratch / "dsort-20260101-000000-abcdef-stream"
    left.mkdir()
    (left / "lock").touch()
    (scratch / "dsort-of-another").mkdir()
    give(monkeypatch, shard_of("a").data)
    run(tmp_path, {"input": "-", **TO_A_BUCKET})
    assert [path.name for path in scratch.iterdir()] == ["dsort-of-another"]


def test_a_job_that_read_a_stream_is_not_resumed(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    twice = shard_of("a", "a")
    give(monkeypatch, twice.data)
    with pytest.raises(InputError):
        run(tmp_path, {"input": "-", **TO_A_BUCKET, "duplicate_keys": "abort"})
    (report,) = (tmp_path / "out").glob(".dsort/*/report.json")
    with raises(InputError, report.parent.name):
        dsort.resume(report.parent.name, "out", options=RunOptions(root=tmp_path))


def test_a_pipeline_of_commands_is_one_of_shards(tmp_path: Path) -> None:
    """GNU tar at both ends; messages are on standard error."""
    for member in [*record("a", "jpg", "cls"), *record("b", "jpg", "cls")]:
        (tmp_path / member.name).write_bytes(member.payload)
    sorts = f"{sys.executable} -m dsort start - - -f '{{}}' --workers 1"
    line = f"tar cf - b.* a.* | {sorts} > sorted.tar"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert b"finished" in done.stderr
    assert record_keys((tmp_path / "sorted.tar").read_bytes()) == ["a", "b"]
    with tarfile.open(tmp_path / "sorted.tar") as archive:
        assert len(archive.getnames()) == 4


def test_standard_input_is_not_the_spec_and_a_shard(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(monkeypatch, b"{}")
    done = cli("start", "-", "-", "-f", "-")
    assert done.code == 2
    assert "cannot be the spec and a shard" in done.err
    assert done.out == ""


def test_a_reader_that_goes_away_is_an_error(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(monkeypatch, shard_of("a").data)
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    with open(write_fd, "w") as gone, monkeypatch.context() as patch:
        patch.setattr("sys.stdout", gone)
        with raises(StorageError):
            run(tmp_path, {"input": "-", "output": "-"})
