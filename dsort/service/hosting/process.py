"""Processes of jobs: their environment, their start (they outlive the service), the watch over
them, and the reasons for their deaths. And their logs: a file for each attempt, on the machine of
the attempt."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, Self

from msgspec import Struct, convert, field, to_builtins
from msgspec.structs import asdict, replace

from dsort.errors import SpecError, SpecProblem
from dsort.job.setup.resources import store_limits, usable_memory_bytes
from dsort.log_lines import without_tracebacks
from dsort.options import RunOptions
from dsort.runtime.machine import Holder, Machine
from dsort.service.config import ServiceConfig, policy_of
from dsort.service.database.tables import JobRow, paths_of, split_uris
from dsort.service.security.guard import check_bucket, policy_of_bucket
from dsort.settings import Settings, resolve_ref
from dsort.spec.buckets import parse_bucket
from dsort.storage.bucket import Bucket
from dsort.storage.network_policy import FetchPolicy
from dsort.storage.open import open_bucket
from dsort.storage.ref import BucketRef

VARIABLE = "DSORT_HOSTED_JOB"
NOT_FOR_JOBS = ("DSORT_DATABASE_URL", "DSORT_SERVER", "DSORT_TOKEN")
INSTALLED = ("site-packages", "dist-packages")


class JobEnvironment(ServiceConfig, frozen=True, kw_only=True):
    """The configuration as the processes of jobs get it, in an environment variable, because all
    users of a machine can read command lines. ``run``: see ``options``. ``environment``: more
    variables."""

    environment: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, config: ServiceConfig) -> Self:
        """The environment of the jobs of a service. If the operator does not set the memory of a
        job, the jobs that may run at once share the available memory equally."""
        run = config.run
        memory_max_bytes = run.memory_max_bytes
        if memory_max_bytes is None and config.jobs_running_max > 1:
            memory_max_bytes = usable_memory_bytes().limit_bytes // config.jobs_running_max
        run = replace(
            run,
            root=run.root.absolute(),
            scratch=config.scratch_dir,
            memory_max_bytes=memory_max_bytes,
            ray_address=run.ray_address if run.runtime == "ray" else None,
            # The service itself runs the commands of hooks.
            settings=replace(run.settings, commands=()),
        )
        return cls(**asdict(config) | {"state_dir": config.state_dir.absolute(), "run": run})

    def options(self) -> RunOptions:
        """The options with which the engine runs the job: ``run``, and the places that its spec may
        use. To be called in the job's process, so that links are followed as they are then."""
        return replace(self.run, fetch=policy_of(self).fetch_policy())

    def open_alone(self, ref: BucketRef) -> Bucket:
        """A bucket of an earlier job, opened with the addresses and limits of the settings. Links
        that lead out of it are never followed."""
        settings, policy = self.run.settings, policy_of(self)
        place = check_bucket(ref, policy)
        ref = resolve_ref(ref, settings)
        limits, own = store_limits(ref, self.run), policy_of_bucket(place, policy)
        return open_bucket(ref, root=self.run.root, limits=limits, policy=own)

    def to_environment(self) -> dict[str, str]:
        """The variables of a job process: the service's variables, this environment as a text, and
        the path to this dsort."""
        text = json.dumps(to_builtins(replace(self, environment={}), enc_hook=str))
        return {**self.path_environment(), VARIABLE: text, **self.environment}

    @staticmethod
    def path_environment() -> dict[str, str]:
        """The service's variables, with the path to this dsort, and without the secrets that only
        the service needs."""
        ours = {name: value for name, value in os.environ.items() if name not in NOT_FOR_JOBS}
        package = Path(__file__).resolve().parents[3]  # the directory that holds dsort/
        if package.name not in INSTALLED:
            parts = [str(package), *filter(None, [ours.get("PYTHONPATH")])]
            ours["PYTHONPATH"] = os.pathsep.join(parts)
        return ours

    @classmethod
    def from_environment(cls) -> Self:
        """The environment that the service has passed to this process. Its variable is removed, so
        that child processes do not get it."""
        values = json.loads(os.environ.pop(VARIABLE))  # paths may be no UTF-8
        return convert(values, cls, dec_hook=lambda kind, text: kind(text))


def interpreter() -> list[str]:
    """The command that runs a module of this dsort, independent of the files in the current
    directory."""
    return [sys.executable, "-P", "-m"]


def policy_of_job(policy: FetchPolicy, row: JobRow) -> FetchPolicy:
    """The service's ``policy`` for one job: it allows only the directories and files that were
    checked against the token at submission. Links that lead out of these are never followed."""
    files = None if row.file_uris is None else paths_of(row.file_uris)
    return policy.of_job(
        paths_of(split_uris(row.input_uri)), paths_of(split_uris(row.output_uri)), files
    )


def output_ref(row: JobRow, settings: Settings) -> BucketRef:
    """The bucket that a job writes to, as its spec names it."""
    try:
        return parse_bucket(row.spec.get("output_bck"), ais_is_there=settings.ais_is_there)
    except ValueError as error:  # another program wrote the row
        raise SpecError([SpecProblem("output_bck", str(error))]) from error


def open_output(row: JobRow, run: RunOptions, policy: FetchPolicy) -> Bucket:
    """The bucket that a job writes to. ``policy``: the service's."""
    settings = run.settings
    own = policy_of_job(policy, row).for_outputs()
    ref = resolve_ref(output_ref(row, settings), settings)
    return open_bucket(ref, root=run.root, limits=settings.limits(ref), policy=own)


AttemptKey = tuple[str, int]
"""The id of a job and the number of its attempt."""


def key_of(row: JobRow) -> AttemptKey:
    """The attempt that ``row`` is in."""
    return row.job_id, row.attempt


OOM_SCORE = 500
"""Higher than 0, the score of the service and of all other processes that set no score."""

_VMSTAT = Path("/proc/vmstat")


class Host:
    """This machine, as the rows of jobs name it.

    ``name``: made of host name, boot, and namespace of process numbers, so that it is equal for all
    processes that see the same process numbers, and different after a restart of the machine.
    """

    def __init__(self, machine: Machine | None = None) -> None:
        self._machine = machine or Machine()
        here = self._machine.holder()
        self._hostname, self._boot_id = here.host, here.boot_id
        self.name: str = f"{here.host}/{here.boot_id}"

    def this_process(self) -> tuple[int, float]:
        """Number and start (ticks since boot) of this process."""
        here = self._machine.holder()
        return here.pid, float(here.pid_start)

    def is_alive(self, pid: int, started: float | None) -> bool:
        """Whether the process ``pid`` is running. False for a process that has ended and was not
        waited for, and if another process has the number now. ``started``: None if the start is
        unknown."""
        if started is None:
            return Path(f"/proc/{pid}").exists()
        holder = Holder(self._hostname, self._boot_id, pid, int(started))
        return not self._machine.is_gone(holder)


def offer_to_oom_killer() -> None:
    """Make the kernel kill this process and its children before others, when memory runs out."""
    with contextlib.suppress(OSError):  # a container may not allow it: then no process is preferred
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE), encoding="ascii")


def oom_kills() -> int | None:
    """How many processes the kernel has killed on this machine because the memory of the machine or
    of a control group ran out; None if the kernel does not report it."""
    with contextlib.suppress(OSError):
        found = re.search(r"(?m)^oom_kill (\d+)$", _VMSTAT.read_text(encoding="ascii"))
        return int(found[1]) if found else None
    return None


MODULE = "dsort.service.hosting.job_start"


class JobProcess(Struct):
    """The process of an attempt, started by this service. ``oom_kills``: the result of
    ``oom_kills()`` when the process started."""

    popen: subprocess.Popen[bytes]
    oom_kills: int | None

    @classmethod
    def begin(cls, row: JobRow, job_environment: JobEnvironment) -> JobProcess:
        """Start a process for the attempt that ``row`` is in. ``OSError``."""
        path = log_path(job_environment.state_dir, row.job_id, row.attempt)
        command = [*interpreter(), MODULE, row.job_id, str(row.attempt)]
        kills = oom_kills()  # before the start, so that a kill right after it is counted
        return cls(begin_process(command, job_environment.to_environment(), path), kills)

    @property
    def exit_code(self) -> int | None:
        """None while the process runs; minus the number of the signal that ended it. Leaves no
        zombie."""
        return self.popen.poll()


def begin_process(
    command: list[str], environment: Mapping[str, str], log_file: Path, cwd: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start a process that may outlive the service and writes to ``log_file``. ``OSError``."""
    log_file.parent.mkdir(parents=True, exist_ok=True)
    with open(log_file, "ab", opener=for_us_only) as log:
        return subprocess.Popen(
            command,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # So that a signal that ends the service's session does not end its jobs.
            start_new_session=True,
        )


def for_us_only(path: str, flags: int) -> int:
    """An opener of files that only this user can read."""
    return os.open(path, flags, 0o600)


SILENT_S_MAX = 30.0
"""An attempt of another replica that has sent no heartbeat for so many seconds is dead."""
BEGIN_S_MAX = 120.0
"""An attempt without any heartbeat for so many seconds has no process. Twenty processes that begin
at once on two busy cores need half a minute for their first report."""


class ExitReason(Struct, frozen=True):
    """``died``: whether the death counts against the job. ``out_of_memory``: the kernel has
    probably killed the process because memory ran out."""

    reason: str
    died: bool = True
    out_of_memory: bool = False


class Watch:
    """Finds dead attempts among those that this service has not started.

    Attempts of this replica, which an earlier service started, are judged by their processes;
    attempts of other replicas by their heartbeats alone. The time without a heartbeat is measured
    by this machine's clock, from the moment when the last heartbeat was first seen, so that clocks
    of two machines are not compared.
    """

    def __init__(
        self, host: Host, replica: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._host = host
        self._replica = replica
        self._clock = clock
        self._seen: dict[AttemptKey, tuple[float | None, float]] = {}

    def forget(self) -> None:
        """Restart all measurements, because for a while no heartbeat could be read."""
        self._seen.clear()

    def deaths(self, rows: Iterable[JobRow]) -> dict[AttemptKey, ExitReason]:
        """The exit reasons of the dead attempts among ``rows``, which are all attempts to watch."""
        seen, now_s = self._seen, self._clock()
        self._seen = {}
        found: dict[AttemptKey, ExitReason] = {}
        for row in rows:
            beat, since_s = seen.get(key_of(row), (row.heartbeat_at, now_s))
            since_s = since_s if beat == row.heartbeat_at else now_s
            self._seen[key_of(row)] = row.heartbeat_at, since_s
            is_ours = (row.host, row.replica) == (self._host.name, self._replica)
            death = self._end(row) if is_ours else _silence(row, now_s - since_s)
            if death is not None:
                found[key_of(row)] = death
        return found

    def _end(self, row: JobRow) -> ExitReason | None:
        if row.pid is None:
            return ExitReason("the service ended before it started the job's process", died=False)
        if self._host.is_alive(row.pid, row.pid_started):
            return None
        return ExitReason(f"its process {row.pid} is gone")


def _silence(row: JobRow, silent_s: float) -> ExitReason | None:
    if silent_s < (BEGIN_S_MAX if row.pid is None else SILENT_S_MAX):
        return None
    machine = (row.host or "").partition("/")[0]
    # Without a process, the job cannot be the cause.
    reason = f"{machine} has sent no heartbeat for {silent_s:.0f} s"
    return ExitReason(reason, died=row.pid is not None)


def how_it_died(process: JobProcess, code: int) -> ExitReason:
    """The exit reason of a process that this service started and that left its job unfinished."""
    pid = process.popen.pid
    if code >= 0:
        return ExitReason(f"its process {pid} ended with code {code}")
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    reason = f"its process {pid} was killed by {name}"
    kills = oom_kills()
    if -code == signal.SIGKILL and kills is not None and kills > (process.oom_kills or 0):
        return ExitReason(f"{reason}, probably because memory ran out", out_of_memory=True)
    return ExitReason(reason)


TAIL_BYTES = 16 << 10
DIRECTORY = "logs"
NO_LEVEL: Final = "-"
_LOGGED = re.compile(r"\S+ ([DIWEC]) ")


def log_path(state_dir: Path, job_id: str, attempt: int) -> Path:
    """The path of the log of an attempt."""
    return state_dir / DIRECTORY / f"{job_id}-{attempt}.log"


def remove_logs(state_dir: Path, job_id: str) -> None:
    """Remove the logs of all attempts at a job from this machine."""
    for path in (state_dir / DIRECTORY).glob("*.log"):
        owner, _, attempt = path.stem.rpartition("-")
        if owner == job_id and attempt.isdecimal():
            with contextlib.suppress(OSError):
                path.unlink()


def tail(path: Path, *, bytes_max: int = TAIL_BYTES) -> str:
    """The end of a log, from the beginning of a line; "" if there is no log."""
    text = _end(path, bytes_max)
    # A character has up to four bytes: a shorter text is the whole log, from its first line.
    return text if len(text) < bytes_max // 4 else text.partition("\n")[2] or text


def log_event(path: Path) -> dict[str, str] | None:
    """The end of a log as the data of an event, for all who may see the job; None if it is empty.

    ``text``: without tracebacks, which stay in the file for the operators of the service.
    ``levels``: for each of its lines, the letter that ``LineFormatter`` writes, or ``-`` for a line
    that was not logged.
    """
    text = without_tracebacks(tail(path))
    return {"text": text, "levels": "".join(map(_level, text.splitlines()))} if text else None


def _level(line: str) -> str:
    found = _LOGGED.match(line)
    return found[1] if found else NO_LEVEL


def _end(path: Path, bytes_max: int) -> str:
    try:
        with path.open("rb") as log:
            size = log.seek(0, 2)
            log.seek(max(size - bytes_max, 0))
            return log.read(bytes_max).decode("utf-8", "replace")
    except OSError:
        return ""
