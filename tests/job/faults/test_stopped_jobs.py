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
from tests.support.coordinators import Ended
from tests.support.datasets import files_of, tree_of
from tests.support.fault_points import PointFault, arm
from tests.support.internals import Event, PhaseDone
from tests.support.refusals import raises
from tests.support.small_places import fill
from tests.support.surviving import (
    CASES,
    Trial,
    assert_kept,
    assert_whole,
    job_in,
    only_a_report,
    prepare,
    undisturbed,
)

CODES = {"interrupt": 130, "terminate": 143, "hang": 129}


def begin(trial: Trial, case: str, fault: PointFault, *more: str) -> Ended:
    """Run the case until ``fault``."""
    points = arm(trial.root / "points", fault)
    return trial.run(*trial.prepare(case), *more, points=points)


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
def test_a_signal_keeps_what_is_done(case: str, fault: PointFault, trial: Trial) -> None:
    ended = begin(trial, case, fault)
    assert ended.code == CODES[fault.action.split()[0]], ended.err
    created = assert_kept(trial.out, CASES[case].old)
    extracted = set(trial.known.extracted)
    assert extracted
    resumed = trial.resume()
    assert resumed.report is not None
    assert resumed.report.run.move == CASES[case].move
    assert not resumed.created & created
    assert not resumed.extracted & extracted
    trial.is_whole()


def test_the_message_has_the_bytes_kept_and_a_command_that_resumes(trial: Trial) -> None:
    fault = PointFault("create:end", 2, "interrupt parent")
    # With a space in it, so that the command of the message has to quote it.
    ended = begin(trial, "spilled", fault, "--scratch", str(trial.root / "s p"))
    assert re.search(r"SIGINT; [0-9.]+ [KM]iB of its work are kept", ended.err), ended.err
    resume, _ = commands_in(ended.err)
    assert resume[:2] == ["resume", job_in(trial.out)]
    trial.done(*resume, "--progress", "none")
    trial.is_whole()
    assert list((trial.root / "s p").iterdir()) == []


def test_the_message_has_a_command_that_discards_this_job_and_no_other(trial: Trial) -> None:
    fault = PointFault("create:end", 2, "interrupt parent")
    scratch = ("--scratch", str(trial.root / "s p"))
    first = begin(trial, "spilled", fault, *scratch)
    other = job_in(trial.out)
    points = arm(trial.root / "again", fault)
    again = trial.run(*trial.prepare("spilled"), *scratch, points=points)
    assert again.code == 130, again.err
    _, gc = commands_in(again.err)
    assert gc[0] == "gc"
    trial.done(*gc)
    assert {path.name for path in (trial.out / ".dsort").iterdir()} == {other}
    assert [path.name for path in (trial.root / "s p").iterdir()] == [f"dsort-{other}"]
    trial.done(*commands_in(first.err)[1])
    assert tree_of(trial.out) == {}
    assert list((trial.root / "s p").iterdir()) == []


def test_a_request_to_stop_discards_what_is_done(trial: Trial) -> None:
    with StopFlag() as stop:

        def listen(event: Event) -> None:
            if isinstance(event, PhaseDone) and event.phase == "create":
                stop.request(signal.SIGTERM, "a request", discards=True)

        with pytest.raises(JobStoppedError):
            run_case(trial.root, "spilled", on_event=listen, stop=stop)
    only_a_report(trial.out)


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
def test_ctrl_c_in_python_keeps_what_is_done(phase: str, trial: Trial) -> None:
    def listen(event: Event) -> None:
        if isinstance(event, PhaseDone) and event.phase == phase:
            signal.raise_signal(signal.SIGINT)

    with ctrl_c_works(), pytest.raises(KeyboardInterrupt) as stopped:
        run_case(trial.root, "spilled", on_event=listen)
    (note,) = stopped.value.__notes__
    assert [command[0] for command in commands_in(note)] == ["resume", "gc"]
    assert children_here() == []
    created = assert_kept(trial.out)
    resumed = trial.resume()
    assert resumed.extracted == set()
    assert not resumed.created & created
    trial.is_whole("spilled")


def test_a_second_ctrl_c_in_python_keeps_what_is_done(trial: Trial) -> None:
    def listen(event: Event) -> None:
        if isinstance(event, PhaseDone) and event.phase == "create":
            signal.raise_signal(signal.SIGINT)

    def listed(*_: Any) -> Any:
        signal.raise_signal(signal.SIGINT)

    with ctrl_c_works(), trial.monkeypatch.context() as patched:
        patched.setattr("dsort.job.suspend.list_job_directories", listed)
        with pytest.raises(KeyboardInterrupt):
            run_case(trial.root, "spilled", on_event=listen)
    created = assert_kept(trial.out)
    resumed = trial.resume()  # at once: the lease was given up
    assert not resumed.created & created
    trial.is_whole("spilled")


@pytest.mark.parametrize("case", ["renamed", "replacing"])
def test_names_that_were_given_are_taken_back_and_the_shards_kept(case: str, trial: Trial) -> None:
    given: list[str] = []
    really = LocalBucket.publish

    def publish(bucket: LocalBucket, token: str, name: str, **named: Any) -> None:
        if len(given) == 3:
            raise KeyboardInterrupt
        really(bucket, token, name, **named)
        given.append(name)

    with trial.monkeypatch.context() as patched:
        patched.setattr(LocalBucket, "publish", publish)
        with pytest.raises(KeyboardInterrupt):
            run_case(trial.root, case)
    assert len(given) == 3
    assert_kept(trial.out, CASES[case].old)
    resumed = trial.resume()
    assert resumed.created == set()
    trial.is_whole(case)


def test_gc_after_names_were_taken_back_leaves_what_was_replaced(trial: Trial) -> None:
    fault = PointFault("publish:end", 1, "interrupt", about="out-3")
    ended = begin(trial, "replacing", fault)
    assert ended.code == 130, ended.err
    assert_kept(trial.out, CASES["replacing"].old)
    trial.done(*commands_in(ended.err)[1])
    assert tree_of(trial.out).keys() == CASES["replacing"].old.keys()
    assert files_of(trial.out, "*") == dict(CASES["replacing"].old)


# -- full disks ----------------------------------------------------------------------------------


def when_done(phase: str, do: Callable[[], object]) -> Callable[[Event], None]:
    def listen(event: Event) -> None:
        if isinstance(event, PhaseDone) and event.phase == phase:
            do()

    return listen


@pytest.mark.parametrize("phase", ["plan", "create"])
def test_a_full_output_disk_keeps_what_is_done(phase: str, small: Path, trial: Trial) -> None:
    scratch = trial.root / "scratch"
    trial.out.symlink_to(small / "out")
    (small / "out").mkdir()
    with pytest.raises(StorageFullError) as full:
        run_case(
            trial.root, "spilled", scratch=scratch, on_event=when_done(phase, lambda: fill(small))
        )
    assert [command[0] for command in commands_in(full.value.hint)] == ["resume", "gc"]
    assert [path.name for path in scratch.iterdir()] == [f"dsort-{job_in(small / 'out')}"]
    created = assert_kept(small / "out")
    assert bool(created) == (phase == "create")
    (small / "filler").unlink()
    resumed = trial.resume(scratch=scratch)
    assert resumed.extracted == set()
    assert not resumed.created & created
    assert_whole(small / "out", undisturbed("spilled", trial.base))


def test_a_full_scratch_disk_keeps_all_but_scratch(small: Path, trial: Trial) -> None:
    listen = when_done("extract", lambda: fill(small))
    with raises(StorageFullError, str(small)) as full:
        run_case(trial.root, "spilled", scratch=small, on_event=listen)
    assert full.value.place.startswith(str(small))
    assert [path.name for path in small.iterdir()] == ["filler"]
    assert_kept(trial.out)
    (small / "filler").unlink()
    trial.resume(scratch=small)
    trial.is_whole("spilled")


# -- how payload moves ---------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["resolve", "extract"])
def test_a_resumed_job_moves_payload_as_was_asked(phase: str, trial: Trial) -> None:
    with StopFlag() as stop:
        listen = when_done(phase, lambda: stop.request(signal.SIGTERM))
        with pytest.raises(JobStoppedError):
            run_case(trial.root, "by range", on_event=listen, stop=stop)
    resumed = trial.resume()
    assert resumed.report is not None
    assert resumed.report.run.move == "range"
    trial.is_whole("by range")
