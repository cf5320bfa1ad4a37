"""A job that a signal, Ctrl-C in Python or a full disk stops keeps what it has done: its message
says how much and which commands resume or discard it, and the resumed job has the bytes of one that
was not disturbed and writes no finished output shard again."""

from __future__ import annotations

import contextlib
import re
import shlex
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dsort.errors import JobStoppedError, StorageFullError
from dsort.options import RunOptions
from dsort.spec.load import parse_spec
from dsort.stop_flag import StopFlag
from dsort.storage.directory.bucket import LocalBucket
from tests.support.children import children_here
from tests.support.coordinators import Coordinators, Ended
from tests.support.datasets import files_of, tree_of
from tests.support.fault_points import PointFault, arm, struck
from tests.support.internals import Event, PhaseDone
from tests.support.refusals import raises
from tests.support.small_places import fill
from tests.support.surviving import (
    CASES,
    assert_kept,
    assert_whole,
    job_in,
    known_of,
    only_a_report,
    prepare,
    resume_here,
    start_arguments,
    undisturbed,
)

CODES = {"interrupt": 130, "terminate": 143, "hang": 129}


def begin(begun: Coordinators, root: Path, case: str, fault: PointFault, *more: str) -> Ended:
    """Run the case until ``fault``; the buckets are below ``root``."""
    prepare(root, CASES[case])
    points = arm(root / "points", fault)
    ended = begun.run(root, *start_arguments(CASES[case], *more), points=points)
    assert struck(points) == [fault.point], ended.err
    return ended


def commands_in(text: str) -> list[list[str]]:
    """The ``dsort`` commands of a message, each as words."""
    joined = " ".join(text.split())
    return [shlex.split(found)[1:] for found in re.findall(r"`(dsort [^`]*)`", joined)]


STOPS = [
    # Of the last shard: by then the coordinator has the answers of the first ones.
    ("spilled", PointFault("extract:end", 4, "interrupt parent")),
    ("shuffle", PointFault("create:end", 2, "terminate parent")),
    ("by range", PointFault("create:end", 3, "interrupt parent")),
    ("renamed", PointFault("create:end", 2, "hang parent")),
    ("key map", PointFault("commit:start", 1, "interrupt")),
    ("rows", PointFault("create:end", 2, "terminate parent")),
]


@pytest.mark.sample(keep=4)
@pytest.mark.parametrize(("case", "fault"), STOPS, ids=[f"{c}-{f.action}" for c, f in STOPS])
def test_a_signal_keeps_what_is_done(
    case: str,
    fault: PointFault,
    begun: Coordinators,
    base: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = begin(begun, tmp_path, case, fault)
    assert ended.code == CODES[fault.action.split()[0]], ended.err
    created = assert_kept(tmp_path / "out", CASES[case].old)
    extracted = set(known_of(tmp_path / "out").extracted)
    assert extracted
    resumed = resume_here(tmp_path, monkeypatch)
    assert resumed.report is not None
    assert resumed.report.run.move == CASES[case].move
    assert not resumed.created & created
    assert not resumed.extracted & extracted
    assert_whole(tmp_path / "out", undisturbed(case, base))


def test_the_message_has_the_bytes_kept_and_a_command_that_resumes(
    begun: Coordinators, base: Path, tmp_path: Path
) -> None:
    fault = PointFault("create:end", 2, "interrupt parent")
    ended = begin(begun, tmp_path, "spilled", fault, "--scratch", str(tmp_path / "s p"))
    assert re.search(r"SIGINT; [0-9.]+ [KM]iB of what it did are kept", ended.err), ended.err
    resume, _ = commands_in(ended.err)
    assert resume[:2] == ["resume", job_in(tmp_path / "out")]
    resumed = begun.run(tmp_path, *resume, "--progress", "none")
    assert resumed.code == 0, resumed.err
    assert_whole(tmp_path / "out", undisturbed("spilled", base))
    assert list((tmp_path / "s p").iterdir()) == []


def test_the_message_has_a_command_that_discards_this_job_and_no_other(
    begun: Coordinators, tmp_path: Path
) -> None:
    fault = PointFault("create:end", 2, "interrupt parent")
    scratch = ("--scratch", str(tmp_path / "s p"))
    first = begin(begun, tmp_path, "spilled", fault, *scratch)
    other = job_in(tmp_path / "out")
    points = arm(tmp_path / "again", fault)
    again = begun.run(tmp_path, *start_arguments(CASES["spilled"], *scratch), points=points)
    assert again.code == 130, again.err
    _, gc = commands_in(again.err)
    assert gc[0] == "gc"
    done = begun.run(tmp_path, *gc)
    assert done.code == 0, done.err
    assert {path.name for path in (tmp_path / "out" / ".dsort").iterdir()} == {other}
    assert [path.name for path in (tmp_path / "s p").iterdir()] == [f"dsort-{other}"]
    assert begun.run(tmp_path, *commands_in(first.err)[1]).code == 0
    assert tree_of(tmp_path / "out") == {}
    assert list((tmp_path / "s p").iterdir()) == []


def test_a_request_to_stop_discards_what_is_done(
    begun: Coordinators, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with StopFlag() as stop:

        def listen(event: Event) -> None:
            if isinstance(event, PhaseDone) and event.phase == "create":
                stop.request(signal.SIGTERM, "a request", discards=True)

        with pytest.raises(JobStoppedError):
            run_case(tmp_path, "spilled", on_event=listen, stop=stop)
    only_a_report(tmp_path / "out")


def run_case(root: Path, case: str, *, output: Path | None = None, **named: Any) -> Any:
    """Run a case in this process; ``output``: a directory for its results."""
    import dsort

    prepare(root, CASES[case])
    fields = CASES[case].spec | ({} if output is None else {"output_bck": output.as_uri()})
    scratch = named.pop("scratch", None)
    options = RunOptions(root=root, workers=2, move=CASES[case].move, scratch=scratch)
    return dsort.run(parse_spec(fields).spec, options=options, **named)


@contextlib.contextmanager
def ctrl_c_works() -> Iterator[None]:
    """Where tests run in the background of a shell, SIGINT was ignored before Python began."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_job_that_is_stopped_before_it_begins_says_that_nothing_is_left(tmp_path: Path) -> None:
    with StopFlag() as stop:
        stop.request(signal.SIGINT)
        with pytest.raises(JobStoppedError) as stopped:
            run_case(tmp_path, "spilled", stop=stop)
    assert "nothing is left" in stopped.value.hint
    assert tree_of(tmp_path / "out") == {}


@pytest.mark.parametrize("phase", ["extract", "plan", "create"])
def test_ctrl_c_in_python_keeps_what_is_done(
    phase: str, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listen(event: Event) -> None:
        if isinstance(event, PhaseDone) and event.phase == phase:
            signal.raise_signal(signal.SIGINT)

    with ctrl_c_works(), pytest.raises(KeyboardInterrupt) as stopped:
        run_case(tmp_path, "spilled", on_event=listen)
    (note,) = stopped.value.__notes__
    assert [command[0] for command in commands_in(note)] == ["resume", "gc"]
    assert children_here() == []
    created = assert_kept(tmp_path / "out")
    resumed = resume_here(tmp_path, monkeypatch)
    assert resumed.error is None
    assert resumed.extracted == set()
    assert not resumed.created & created
    assert_whole(tmp_path / "out", undisturbed("spilled", base))


def test_a_second_ctrl_c_in_python_keeps_what_is_done(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listen(event: Event) -> None:
        if isinstance(event, PhaseDone) and event.phase == "create":
            signal.raise_signal(signal.SIGINT)

    def listed(*_: Any) -> Any:
        signal.raise_signal(signal.SIGINT)

    with ctrl_c_works(), monkeypatch.context() as patched:
        patched.setattr("dsort.job.suspend.list_job_directories", listed)
        with pytest.raises(KeyboardInterrupt):
            run_case(tmp_path, "spilled", on_event=listen)
    created = assert_kept(tmp_path / "out")
    resumed = resume_here(tmp_path, monkeypatch)  # at once: the lease was given up
    assert resumed.error is None
    assert not resumed.created & created
    assert_whole(tmp_path / "out", undisturbed("spilled", base))


@pytest.mark.parametrize("case", ["renamed", "replacing"])
def test_names_that_were_given_are_taken_back_and_the_shards_kept(
    case: str, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[str] = []
    really = LocalBucket.publish

    def publish(bucket: LocalBucket, token: str, name: str, **named: Any) -> None:
        if len(given) == 3:
            raise KeyboardInterrupt
        really(bucket, token, name, **named)
        given.append(name)

    with monkeypatch.context() as patched:
        patched.setattr(LocalBucket, "publish", publish)
        with pytest.raises(KeyboardInterrupt):
            run_case(tmp_path, case)
    assert len(given) == 3
    assert_kept(tmp_path / "out", CASES[case].old)
    resumed = resume_here(tmp_path, monkeypatch)
    assert resumed.error is None
    assert resumed.created == set()
    assert_whole(tmp_path / "out", undisturbed(case, base))


def test_gc_after_names_were_taken_back_leaves_what_was_replaced(
    begun: Coordinators, tmp_path: Path
) -> None:
    fault = PointFault("publish:end", 1, "interrupt", about="out-3")
    ended = begin(begun, tmp_path, "replacing", fault)
    assert ended.code == 130, ended.err
    assert_kept(tmp_path / "out", CASES["replacing"].old)
    done = begun.run(tmp_path, *commands_in(ended.err)[1])
    assert done.code == 0, done.err
    assert tree_of(tmp_path / "out").keys() == CASES["replacing"].old.keys()
    assert files_of(tmp_path / "out", "*") == dict(CASES["replacing"].old)


# -- full disks ----------------------------------------------------------------------------------


def when_done(phase: str, do: Callable[[], object]) -> Callable[[Event], None]:
    def listen(event: Event) -> None:
        if isinstance(event, PhaseDone) and event.phase == phase:
            do()

    return listen


@pytest.mark.parametrize("phase", ["plan", "create"])
def test_a_full_output_disk_keeps_what_is_done(
    phase: str, base: Path, tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    (tmp_path / "out").symlink_to(small / "out")
    (small / "out").mkdir()
    with pytest.raises(StorageFullError) as full:
        run_case(
            tmp_path, "spilled", scratch=scratch, on_event=when_done(phase, lambda: fill(small))
        )
    assert [command[0] for command in commands_in(full.value.hint)] == ["resume", "gc"]
    assert [path.name for path in scratch.iterdir()] == [f"dsort-{job_in(small / 'out')}"]
    created = assert_kept(small / "out")
    assert bool(created) == (phase == "create")
    (small / "filler").unlink()
    resumed = resume_here(tmp_path, monkeypatch, scratch=scratch)
    assert resumed.error is None
    assert resumed.extracted == set()
    assert not resumed.created & created
    assert_whole(small / "out", undisturbed("spilled", base))


def test_a_full_scratch_disk_keeps_all_but_scratch(
    base: Path, tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listen = when_done("extract", lambda: fill(small))
    with raises(StorageFullError, str(small)) as full:
        run_case(tmp_path, "spilled", scratch=small, on_event=listen)
    assert full.value.place.startswith(str(small))
    assert [path.name for path in small.iterdir()] == ["filler"]
    assert_kept(tmp_path / "out")
    (small / "filler").unlink()
    resumed = resume_here(tmp_path, monkeypatch, scratch=small)
    assert resumed.error is None
    assert_whole(tmp_path / "out", undisturbed("spilled", base))


# -- how payload moves ---------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["resolve", "extract"])
def test_a_resumed_job_moves_payload_as_was_asked(
    phase: str, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with StopFlag() as stop:
        listen = when_done(phase, lambda: stop.request(signal.SIGTERM))
        with pytest.raises(JobStoppedError):
            run_case(tmp_path, "by range", on_event=listen, stop=stop)
    resumed = resume_here(tmp_path, monkeypatch)
    assert resumed.report is not None
    assert resumed.report.run.move == "range"
    assert_whole(tmp_path / "out", undisturbed("by range", base))
