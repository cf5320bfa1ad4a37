"""Workers that die, hang or break where a test sets a fault, on the real local runtime.

A worker process calls :func:`main` in place of its usual main function. A fault strikes at a task
of one class: ``before`` the task is done, in the ``middle`` of it (half of the bytes of its first
write are written), or ``after`` it, before the answer is sent. It strikes a given number of times
in a job, in any worker. Each time it creates a new file in the fault's directory.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from tests.support import armed
from tests.support.armed import NoSuchPointError
from tests.support.internals import tasks

BEGIN = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "from tests.support.faults import main; main("
)


@dataclass(frozen=True)
class Fault:
    """``task``: a class of ``dsort.workers.tasks``. ``action``: ``die`` by SIGKILL; ``hang`` until
    released: writes to the pipe ``reached`` and waits for the end of the pipe ``released`` (see
    :func:`make_pipes`); ``raise`` a ``ZeroDivisionError``; ``memory``: a ``MemoryError``."""

    directory: str
    task: str
    at: str
    action: str = "die"
    times: int = 1


def bootstrap(fault: Fault) -> str:
    """The program of worker processes with this fault, to replace
    ``dsort.runtime.local.BOOTSTRAP``. The test fails if the fault does not strike (see
    ``armed``)."""
    if not isinstance(getattr(tasks, fault.task, None), type):
        raise NoSuchPointError(f"there is no {tasks.__name__}: {fault.task}")
    directory = Path(fault.directory)
    armed.expect(f"{fault}", directory / "strike-0", of=directory)
    return f"{BEGIN}{json.dumps(json.dumps(asdict(fault)))})"


def fault_of(bootstrap: str) -> str:
    """The argument of ``main`` in the program ``bootstrap``; "" for a program without a fault."""
    if not bootstrap.startswith(BEGIN):
        return ""
    return str(json.loads(bootstrap.removeprefix(BEGIN).removesuffix(")")))


def make_pipes(directory: Path) -> None:
    """The pipes of a fault that hangs."""
    directory.mkdir()
    for pipe in ("reached", "released"):
        os.mkfifo(directory / pipe)


def strikes(directory: Path) -> int:
    """How often a fault has struck."""
    return len(list(directory.glob("strike-*")))


def main(text: str) -> None:
    """A worker's process with a fault in it."""
    from tests.support.internals import local

    install(text)
    local.main()


def install(text: str) -> None:
    """Make workers of this process meet a fault."""
    from tests.support.internals import local

    fault = Fault(**json.loads(text))
    local.Worker = _faulty(local.Worker, fault)  # type: ignore[misc, attr-defined]


def _faulty(worker_class: type[Any], fault: Fault) -> type[Any]:
    class FaultyWorker(worker_class):  # type: ignore[misc]
        def do(self, task: object) -> object:
            due = type(task).__name__ == fault.task and _is_due(fault)
            if due and fault.at == "before":
                _strike(fault)
            struck: list[bool] = []
            if due and fault.at == "middle":
                _break_first_write(fault, struck)
            done = super().do(task)
            if due and fault.at == "after":
                _strike(fault)
            assert struck or not due or fault.at != "middle", "the task has written nothing"
            return done

    return FaultyWorker


def _is_due(fault: Fault) -> bool:
    for number in range(fault.times):
        try:
            os.close(os.open(Path(fault.directory) / f"strike-{number}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        return True
    return False


def _strike(fault: Fault) -> None:
    if fault.action == "die":
        _die()
    if fault.action == "raise":
        raise ZeroDivisionError("a bug")
    if fault.action == "memory":
        raise MemoryError
    (Path(fault.directory) / "reached").write_bytes(b"!")
    with (Path(fault.directory) / "released").open("rb") as released:
        released.read()


def _die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("a killed process goes on")


def _break_first_write(fault: Fault, struck: list[bool]) -> None:
    """Make the next write of a file's content stop half-way, and append to ``struck`` then."""
    from dsort.storage.directory.files import LocalStagedObject
    from tests.support.internals import index as index_store

    write_at, sync = LocalStagedObject.write_at, LocalStagedObject.sync
    write_columns = index_store.write_columns

    def restored() -> None:
        struck.append(True)
        LocalStagedObject.write_at, LocalStagedObject.sync = write_at, sync  # type: ignore[method-assign]
        index_store.write_columns = write_columns

    def half_written(staged: LocalStagedObject, offset: int, slices: Sequence[Any]) -> None:
        half = len(slices) // 2
        write_at(staged, offset, slices[:half])
        restored()
        _strike(fault)
        write_at(staged, offset + sum(map(len, slices[:half])), slices[half:])

    def half_written_columns(scratch: Any, name: str, columns: Any) -> int:
        size_bytes = write_columns(scratch, name, columns)
        os.truncate(scratch.path / name, size_bytes // 2)
        restored()
        _strike(fault)
        return write_columns(scratch, name, columns)

    def half_synced(staged: LocalStagedObject) -> None:
        restored()
        _strike(fault)
        sync(staged)

    patched: list[Callable[..., Any]] = [half_written, half_synced]
    LocalStagedObject.write_at, LocalStagedObject.sync = patched  # type: ignore[method-assign]
    index_store.write_columns = half_written_columns
