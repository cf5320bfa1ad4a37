"""Inputs that change under a job, or that cannot be read: never in silence, and never half a
result."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from dsort.errors import ChangedInputError, MissingShardError, StorageError
from tests.support.datasets import files_of, small_dataset, write_shards
from tests.support.engine import count_of, left_in, records_out, run_local, shard_of, spec_of
from tests.support.faults import Fault, bootstrap, make_pipes
from tests.support.internals import Event, PhaseDone
from tests.support.refusals import raises

DATASET = small_dataset("inputs", payload_bytes_max=20_000)
SPEC = spec_of(algorithm={"kind": "shuffle", "seed": 2})


def other_content(path: Path) -> None:
    """Same size, other bytes, in place."""
    data = bytearray(path.read_bytes())
    data[600] ^= 1
    path.write_bytes(data)


def other_content_and_the_old_time(path: Path) -> None:
    before = path.stat()
    other_content(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def truncate(path: Path) -> None:
    os.truncate(path, 1000)


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(bytes(512))


def replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    other.rename(path)


CHANGES = [other_content, other_content_and_the_old_time, truncate, append, replace, Path.unlink]


@pytest.mark.sample(keep=8)
@pytest.mark.parametrize("move", ["map", "range", "spill"])
@pytest.mark.parametrize("phase", ["resolve", "extract", "create"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_an_input_that_changes_ends_the_job(
    change: Callable[[Path], None], phase: str, move: str, tmp_path: Path
) -> None:
    write_shards(tmp_path / "in", DATASET)
    path = tmp_path / "in" / "in-1.tar"

    def listen(event: Event) -> None:
        if isinstance(event, PhaseDone) and event.phase == phase:
            change(path)

    with pytest.raises(ChangedInputError, match=r"in-1\.tar"):
        run_local(tmp_path, SPEC, move=move, on_event=listen)
    assert left_in(tmp_path / "out") == [".dsort/JOB/report.json"]


@pytest.mark.parametrize(
    ("change", "move"), [(truncate, "map"), (truncate, "range"), (Path.unlink, "map")]
)
def test_an_input_that_is_cut_short_while_it_is_read_where_it_is_ends_the_job(
    change: Callable[[Path], None], move: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_shards(tmp_path / "in", DATASET)
    pipes = tmp_path / "pipes"
    make_pipes(pipes)
    fault = Fault(str(pipes), "CreateTask", "middle", "hang")
    monkeypatch.setattr("dsort.runtime.local.BOOTSTRAP", bootstrap(fault))

    def pull_the_rug() -> None:
        (pipes / "reached").read_bytes()
        for name in DATASET:
            change(tmp_path / "in" / name)
        (pipes / "released").write_bytes(b"")

    puller = threading.Thread(target=pull_the_rug, daemon=True)
    puller.start()
    with pytest.raises(ChangedInputError):
        run_local(tmp_path, SPEC, move=move)
    puller.join()
    assert left_in(tmp_path / "out") == [".dsort/JOB/report.json"]


def make_directory(path: Path) -> None:
    path.mkdir()


def make_dangling_link(path: Path) -> None:
    path.symlink_to(path.with_name("gone"))


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_circular_link(path: Path) -> None:
    path.symlink_to(path)


NO_SHARDS = [make_directory, make_dangling_link, make_pipe]


@pytest.mark.usefixtures("workers_here")
@pytest.mark.parametrize("make", NO_SHARDS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("inputs", [{"template": "in-{0..2}"}, {"prefix": "in-"}], ids=str)
def test_what_is_no_file_is_a_missing_shard(
    make: Callable[[Path], None], inputs: dict[str, str], tmp_path: Path
) -> None:
    write_shards(tmp_path / "in", {"in-0.tar": shard_of("a"), "in-2.tar": shard_of("c")})
    make(tmp_path / "in" / "in-1.tar")
    report = run_local(tmp_path, spec_of(input_format=inputs))
    assert records_out(tmp_path) == ["a.jpg", "c.jpg"]
    # A listing does not show what cannot be a shard; a link may have led to one.
    is_reported = "template" in inputs or make is make_dangling_link
    assert count_of(report, "missing_shards") == ((1, ("in-1.tar",)) if is_reported else (0, ()))


@pytest.mark.usefixtures("workers_here")
@pytest.mark.parametrize("inputs", [{}, {"prefix": "in-"}, {"glob": "in-*"}], ids=str)
def test_links_to_nothing_are_missing_shards_of_any_listing(
    inputs: dict[str, str], tmp_path: Path
) -> None:
    write_shards(tmp_path / "in", {"in-0.tar": shard_of("a")})
    make_dangling_link(tmp_path / "in" / "in-1.tar")
    make_circular_link(tmp_path / "in" / "in-2.tar")
    make_dangling_link(tmp_path / "in" / "in-3.txt")
    (tmp_path / "in" / ".dsort").mkdir()
    make_dangling_link(tmp_path / "in" / ".dsort" / "in-4.tar")
    spec = spec_of(input_format=inputs, Config={"missing_shards": "abort"})
    with raises(MissingShardError, "in-1.tar, in-2.tar"):
        run_local(tmp_path, spec)


@pytest.mark.usefixtures("workers_here")
@pytest.mark.parametrize("make", [*NO_SHARDS, make_circular_link], ids=lambda make: make.__name__)
def test_nothing_but_what_is_no_file_is_an_error(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    make(tmp_path / "in" / "in-1.tar")
    with pytest.raises((MissingShardError, StorageError)):
        run_local(tmp_path, spec_of(input_format={"template": "in-{0..2}"}))
    assert files_of(tmp_path / "out") == {}
