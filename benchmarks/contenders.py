"""The contenders: how each is started on a task, and how its report of the run is read."""

from __future__ import annotations

import json
import math
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.data import Data
from benchmarks.process import Finished

__all__ = [
    "CONTENDERS",
    "PHASES",
    "SCRIPTS",
    "SHARD_BYTES",
    "Account",
    "Contender",
    "Task",
    "cp_script",
    "dsort_account",
    "dsort_command",
    "read_report",
    "script_account",
    "script_command",
    "spec_of",
]

SCRIPTS = Path(__file__).parent / "scripts"
# The bytes of 64MB in a spec.
SHARD_BYTES = 64 * 1024**2
# The phases in which payload moves; resolve and the start of workers come before them.
PHASES = ("extract", "plan", "create", "commit")


@dataclass(frozen=True, slots=True)
class Task:
    """One shuffle of ``data`` into ``output``, an empty directory beside the data's shards."""

    data: Data
    output: Path
    scratch: Path
    workers: int
    cores: int
    cp: tuple[str, ...] = ("cp",)
    memory_bytes_max: int | None = None
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Account:
    """The report of a contender about its run. Rates are computed from ``work_seconds``."""

    work_seconds: float
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Contender:
    """A whole command. ``is_slow``: it gets fewer rounds. ``modules``: the modules that it imports.
    ``output_suffix``: the suffix of its outputs; "" for that of the inputs. ``is_part``: it is a
    part of a shuffle, so its outputs may be smaller than the inputs."""

    name: str
    command: Callable[[Task], list[str]]
    account: Callable[[Finished], Account]
    is_slow: bool = False
    modules: tuple[str, ...] = ()
    output_suffix: str = ""
    is_part: bool = False
    program: str = ""

    @property
    def missing(self) -> str:
        """The reason why the contender cannot run here; "" if it can."""
        lost = [module for module in self.modules if find_spec(module) is None]
        if self.program and shutil.which(self.program) is None:
            lost.append(self.program)
        return f"not installed: {', '.join(lost)}" if lost else ""


def read_report(stdout: str) -> dict[str, Any]:
    """The one JSON object that a command printed, on all of its output or on its last line.

    ``ValueError`` when there is none.
    """
    text = stdout.strip()
    for candidate in (text, text.splitlines()[-1] if text else ""):
        try:
            report = json.loads(candidate)
        except ValueError:
            continue
        if isinstance(report, dict):
            return report
    raise ValueError("the command printed no JSON report")


def spec_of(task: Task) -> dict[str, Any]:
    """dsort's job spec for ``task``; buckets are directories beside each other under the root."""
    return {
        "input_bck": "shards",
        "output_bck": task.output.name,
        "input_format": {"template": task.data.template},
        "input_extension": task.data.suffix,
        "output_format": "out-%06d",
        "output_shard_size": f"{SHARD_BYTES // 1024**2}MB",
        "algorithm": {"kind": "shuffle", "seed": str(task.seed)},
        "description": "benchmark",
    }


def dsort_command(
    move: str | None, more: Mapping[str, Any] | None = None
) -> Callable[[Task], list[str]]:
    """``dsort start`` with the spec of a task. ``more``: fields to replace; None removes a
    field."""

    def command(task: Task) -> list[str]:
        spec = task.scratch / "spec.json"
        fields = spec_of(task) | dict(more or {})
        kept = {name: value for name, value in fields.items() if value is not None}
        spec.write_text(json.dumps(kept))
        line = [sys.executable, "-m", "dsort", "start", "-f", str(spec)]
        line += ["--root", str(task.data.root), "--json", "--progress", "none"]
        line += ["--workers", str(task.workers)]
        if move:
            line += ["--move", move]
        if task.memory_bytes_max:
            line += ["--max-memory", f"{task.memory_bytes_max // 1024**2}MB"]
        return line

    return command


def dsort_account(finished: Finished) -> Account:
    report = read_report(finished.stdout)
    phases: dict[str, float] = report["phase_seconds"]
    kept = ("phase_seconds", "move", "workers", "records", "payload_bytes")
    details = {name: report[name] for name in kept if name in report}
    return Account(sum(phases[phase] for phase in PHASES), details)


def cp_script(task: Task, program: Sequence[str] = ()) -> str:
    """A shell script that divides the shards among as many processes of ``cp`` (or ``program``) as
    dsort has workers."""
    shards = [str(path) for path in task.data.paths]
    count = min(task.workers, len(shards))
    lines = []
    for worker in range(count):
        copy = shlex.join([*(program or task.cp), "--", *shards[worker::count], str(task.output)])
        lines.append(f"{copy} & p{worker}=$!")
    waits = [f"wait $p{worker} || failed=1" for worker in range(count)]
    return "\n".join(["failed=0", *lines, *waits, "exit $failed"])


def _cp(task: Task) -> list[str]:
    return ["/bin/sh", "-c", cp_script(task)]


def _rsync(task: Task) -> list[str]:
    return ["/bin/sh", "-c", cp_script(task, ["rsync", "--archive", "--whole-file"])]


def script_command(name: str, task: Task, *options: str) -> list[str]:
    """A script of the folder ``scripts`` on all shards of a task."""
    line = [sys.executable, str(SCRIPTS / name), "--output", str(task.output)]
    line += ["--seed", str(task.seed), *options, "--"]
    return line + [str(path) for path in task.data.paths]


def _webdataset(task: Task) -> list[str]:
    return script_command("with_webdataset.py", task, "--shard-bytes", str(SHARD_BYTES))


def _tarfile(task: Task) -> list[str]:
    return script_command("with_tarfile.py", task, "--shard-bytes", str(SHARD_BYTES))


def _ray(is_tuned: bool) -> Callable[[Task], list[str]]:
    def command(task: Task) -> list[str]:
        options = ["--cores", str(task.cores), "--scratch", str(task.scratch)]
        if is_tuned:
            blocks = max(1, math.ceil(task.data.total_bytes / SHARD_BYTES))
            options += ["--blocks", str(blocks)]
        return script_command("with_ray_data.py", task, *options)

    return command


def script_account(finished: Finished) -> Account:
    """The account of a script that prints ``work_seconds`` and other figures."""
    report = read_report(finished.stdout)
    return Account(float(report["work_seconds"]), report)


def _whole_account(finished: Finished) -> Account:
    return Account(finished.wall_seconds)


_RAY = ("ray", "pandas", "pyarrow")

CONTENDERS = {
    contender.name: contender
    for contender in (
        Contender("cp", _cp, _whole_account),
        Contender("rsync", _rsync, _whole_account, program="rsync"),
        Contender("dsort", dsort_command(None), dsort_account),
        Contender("dsort-map", dsort_command("map"), dsort_account),
        Contender("dsort-range", dsort_command("range"), dsort_account),
        Contender("dsort-spill", dsort_command("spill"), dsort_account),
        Contender("tarfile", _tarfile, script_account, is_slow=True),
        Contender("webdataset", _webdataset, script_account, is_slow=True, modules=("webdataset",)),
        Contender("ray", _ray(False), script_account, is_slow=True, modules=_RAY),
        Contender("ray-tuned", _ray(True), script_account, is_slow=True, modules=_RAY),
    )
}
