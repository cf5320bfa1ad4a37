"""The process that forks for each shard: ``python -m dsort.service.objects.transform_main``.

It has the engine loaded, which takes most of the time of a small job. The service sends it, over a
socket, the directory of an order and the pipe for its answer. A child of its own does the order: it
says which process it is, and at the end what is wrong, if anything is. All end with the service."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from dsort import api
from dsort.errors import DsortError, InvariantError
from dsort.options import RunOptions
from dsort.service.problems import problem_of
from dsort.settings import Settings
from dsort.spec.load import parse_spec
from dsort.storage.network_policy import FetchPolicy

__all__ = ["MESSAGE_BYTES_MAX", "ORDER_FILE", "OURS", "main"]

ORDER_FILE: Final = "order.json"
MESSAGE_BYTES_MAX: Final = 4096

FILE_BYTES_MAX: Final = 16 << 30
"""Of any file that the job writes: steps may make much of little."""
MEMORY_BYTES_MAX: Final = 512 << 20
PR_SET_PDEATHSIG: Final = 1
OOM_SCORE: Final = 500
OURS: Final = {"PYDANTIC_DISABLE_PLUGINS": "__all__", "OMP_NUM_THREADS": "1"}
"""Variables with which this process starts sooner, and has no threads that keep it from forking.
They are not for the code that it runs."""


def main() -> int:
    """Fork for each order, until the service closes the socket that is our standard input."""
    control = socket.socket(fileno=os.dup(0))
    with open(os.devnull, "r+b") as nowhere:  # what users' code prints is no answer
        for number in (0, 1):
            os.dup2(nowhere.fileno(), number)
    with contextlib.suppress(OSError):  # when memory runs out, this goes before the service
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE), encoding="ascii")
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES_MAX, FILE_BYTES_MAX))
    for name in OURS:
        os.environ.pop(name, None)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for children
    ours = os.getpid()
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES_MAX, 1)
        if not descriptors:
            return 0
        (answer,) = descriptors
        if os.fork() == 0:
            control.close()
            os._exit(_done(Path(os.fsdecode(message)), answer, parent=ours))
        os.close(answer)


def _done(directory: Path, answer: int, *, parent: int) -> int:
    """Do the order in ``directory``, in a child; its exit code."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # which ended before we could ask to end with it
        return 1
    os.write(answer, b"%d\n" % os.getpid())
    said: dict[str, Any] = {}
    try:
        _transform(directory, json.loads((directory / ORDER_FILE).read_bytes()))
    except DsortError as error:
        said = {"problem": problem_of(error)}
    except Exception as error:  # noqa: BLE001 - whoever asked is told, whatever it was
        text = f"the shard cannot be transformed: {type(error).__name__}: {error}"
        said = {"problem": problem_of(InvariantError(text))}
    rest = json.dumps(said).encode() + b"\n"
    while rest:
        rest = rest[os.write(answer, rest) :]
    return 0


def _transform(directory: Path, order: dict[str, Any]) -> None:
    """Run the job."""
    scratch = directory / "scratch"
    scratch.mkdir()
    spec = parse_spec({**order["spec"], "output_bck": f"file://{directory / 'out'}"}).spec
    allowed_by = spec.transform.allowed_by if spec.transform is not None else ""
    options = RunOptions(
        root=Path(order["root"]),
        scratch=scratch,
        workers=1,
        memory_max_bytes=min(order["memory_max_bytes"] or MEMORY_BYTES_MAX, MEMORY_BYTES_MAX),
        bandwidth_max_bytes_per_s=order["bandwidth_max_bytes_per_s"],
        settings=Settings.of_json(order["settings"]),
        forks=True,
        runs_code=bool(allowed_by),
        fetch=replace(FetchPolicy.of(order["fetch"]), own=(str(directory),)),
    )
    api.run(spec, options=options)


if __name__ == "__main__":
    sys.exit(main())
