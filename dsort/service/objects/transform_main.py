"""The process that transforms one shard: ``python -m dsort.service.objects.transform_main``.

It reads its order from standard input, runs the job in a directory of its own, and says on standard
output what is wrong, if anything is. It ends with the service, and so does all that
the job starts."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
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

__all__ = ["OURS", "main"]

FILE_BYTES_MAX: Final = 16 << 30
"""Of any file that the job writes: steps may make much of little."""
MEMORY_BYTES_MAX: Final = 512 << 20
PR_SET_PDEATHSIG: Final = 1
OOM_SCORE: Final = 500
OURS: Final = {"PYDANTIC_DISABLE_PLUGINS": "__all__", "OMP_NUM_THREADS": "1"}
"""Variables with which this process starts sooner, and has no threads that keep it from forking.
They are not for the code that it runs."""


def main() -> int:
    """Do what the order says; the exit code of the process."""
    answer = os.dup(1)
    with open(os.devnull, "wb") as nowhere:  # what users' code prints is no answer
        os.dup2(nowhere.fileno(), 1)
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    with contextlib.suppress(OSError):  # when memory runs out, this goes before the service
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE), encoding="ascii")
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES_MAX, FILE_BYTES_MAX))
    for name in OURS:
        os.environ.pop(name, None)
    order: dict[str, Any] = json.loads(sys.stdin.buffer.read())
    said: dict[str, Any] = {}
    try:
        _transform(order)
    except DsortError as error:
        said = {"problem": problem_of(error)}
    except Exception as error:  # noqa: BLE001 - whoever asked is told, whatever it was
        text = f"the shard cannot be transformed: {type(error).__name__}: {error}"
        said = {"problem": problem_of(InvariantError(text))}
    os.write(answer, json.dumps(said).encode())
    return 0


def _transform(order: dict[str, Any]) -> None:
    """Run the job."""
    directory = Path(order["directory"])
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
