"""The dispatcher begins the jobs of the queue, each in a process of its own, and watches them.

If a job's process dies, a new process resumes the job. After the third death the job fails. The
dispatcher itself may end at any time: jobs run on, and the next dispatcher finds them. Between
turns it sleeps until a job is submitted, a process ends, or time is up (:class:`Wakeup`)."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from dsort.closing import ClosesOnExit
from dsort.errors import DsortError, NotFoundError, WorkerLostError
from dsort.job.setup.resources import cores
from dsort.log_lines import logger_of
from dsort.runtime.ray.cluster import check_ray_version
from dsort.service.config import ServiceConfig
from dsort.service.database.engine import Database
from dsort.service.hosting.environment import JobEnvironment
from dsort.service.hosting.handing_over import hand_jobs_over
from dsort.service.hosting.logs import log_event, log_path
from dsort.service.hosting.process import (
    ExitReason,
    Host,
    JobProcess,
    Watch,
    how_it_died,
    left_path,
)
from dsort.service.hosting.ray_head import RayHead
from dsort.service.hosting.reporter import DATABASE_AWAY
from dsort.service.jobs.queue import (
    Ending,
    Limits,
    ProgressUpdate,
    claim_next,
    finish,
    release,
    take_over,
)
from dsort.service.jobs.rows import JobRow
from dsort.service.jobs.store import JobStore
from dsort.service.problems import problem_of

__all__ = [
    "Dispatcher",
    "Timing",
    "Wakeup",
]

DEATHS_MAX = 3
HOSTED_KEPT = 10_000
OUT_OF_MEMORY_HINT = (
    "give it more memory (--max-memory, fewer jobs at once) or smaller work (max_mem_usage, "
    "fewer --workers), then resume it: what it had done is kept"
)
DIED_HINT = "`dsort log` shows its end; once the reason is gone, resume it: what was done is kept"

log = logger_of("service")


class Timing(Struct, frozen=True):
    """Durations in seconds: the longest and shortest pause between two looks at the queue; the time
    for which a job whose stop was requested may run on before its process is killed; and the pause
    after a process could not be started."""

    look_s: float = 1.0
    rest_s: float = 0.02
    stop_grace_s: float = 60.0
    unborn_s: float = 5.0


class Dispatcher(ClosesOnExit):
    """Runs the jobs of one replica, from ``start`` to ``close``, in a thread of its own."""

    def __init__(
        self, config: ServiceConfig, database: Database, *, timing: Timing | None = None
    ) -> None:
        self._database = database
        self._store = JobStore(database)
        self._replica = config.replica
        self._limits = Limits(
            config.jobs_running_max, config.plans_running_max, config.running_per_owner_max
        )
        self._job_time_max_s = config.job_time_max_s
        self._hands_over = config.hand_over
        self.handed_over = 0
        self._job_environment = JobEnvironment.of(config)
        self._timing = timing or Timing()
        self._host = Host()
        self._watch = Watch(self._host, config.replica)
        self._over = threading.Event()
        self._ray_head: RayHead | None = None
        run = config.run
        if run.runtime == "ray":
            check_ray_version()
        if run.runtime == "ray" and run.ray_address is None:
            jobs_max = config.jobs_running_max + config.plans_running_max
            workers = run.workers or cores()
            run = replace(self._job_environment.run, workers=workers)
            self._job_environment = replace(self._job_environment, run=run)
            self._ray_head = RayHead(
                config.state_dir.absolute(), cpus=workers * jobs_max, over=self._over
            )
        self._begun: dict[tuple[str, int], JobProcess] = {}
        self._none_before_s = 0.0  # no process can be started until then
        self._asked: dict[tuple[str, int], float] = {}
        self._hosted: OrderedDict[str, None] = OrderedDict()
        self._waker = Wakeup()
        self._thread = threading.Thread(target=self._run, name="dsort-dispatcher", daemon=True)

    def start(self) -> None:
        """Start the thread that runs jobs."""
        self._thread.start()

    def wake(self) -> None:
        """Make the thread look for work: a job was submitted. For any thread, at any time."""
        self._waker.wake()

    def hosts(self, job_id: str) -> bool:
        """Whether the job runs, or ran, on this replica."""
        return job_id in self._hosted

    @property
    def alive(self) -> bool:
        """Whether the thread that begins and watches jobs is running."""
        return self._thread.is_alive()

    def rest(self) -> None:
        """Begin no more jobs, because the service is about to end. From any thread, or a signal."""
        self._over.set()

    def close(self) -> None:
        """End the dispatcher. Jobs run on, or are handed over, as the operator has configured it;
        then ``handed_over`` is their number. Our own Ray ends if no jobs run."""
        self._over.set()
        self._waker.wake()
        if self._thread.is_alive():
            self._thread.join()
        if self._hands_over:
            environment, processes = self._job_environment, [*self._begun.values()]
            self.handed_over = hand_jobs_over(
                self._database, self._host, environment, processes, replica=self._replica
            )
        for process in self._begun.values():
            process.let_go()
        if self._ray_head is not None and not self._any_running():
            self._ray_head.stop()
        self._waker.close()

    def _is_here(self, row: JobRow) -> bool:
        return row.host == self._host.name and row.replica == self._replica

    def _any_running(self) -> bool:
        """Whether a job of this replica may be running."""
        try:
            return any(row.replica == self._replica for row in self._store.running())
        except DATABASE_AWAY:
            return True

    # -- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        away = False
        while not self._over.is_set():
            try:
                self._turn()
                away = False
            except DATABASE_AWAY as error:
                if not away:
                    log.warning("the database does not answer: %s", error)
                self._watch.forget()
                away = True
            except DsortError as error:
                log.warning("no jobs can be begun: %s", error)
                away = False
            except Exception:
                log.exception("no jobs can be begun")
                away = False
            self._waker.wait(self._timing.look_s)
            self._over.wait(self._timing.rest_s)  # so that many wake-ups at once cause one turn

    def _turn(self) -> None:
        self._see_after()
        self._begin_queued()

    def _see_after(self) -> None:
        running = self._store.running()
        keys = {(row.job_id, row.attempt) for row in running}
        self._watch.keep_only(keys)
        self._asked = {key: asked_s for key, asked_s in self._asked.items() if key in keys}
        ended = {
            key: code
            for key, process in self._begun.items()
            if (code := process.exit_code) is not None
        }
        for row in running:
            if row.replica == self._replica:
                self._note_hosted(row)
            death = self._death(row, ended)
            if death is not None:
                self._recover(row, death)
            elif row.stop_asked_at is not None:
                self._stop_by_force(row)
            elif row.replica == self._replica:
                self._stop_if_too_long(row)
        for key, code in ended.items():
            log.debug("job %s, attempt %d: its process ended with code %d", *key, code)
            del self._begun[key]

    def _death(self, row: JobRow, ended: dict[tuple[str, int], int]) -> ExitReason | None:
        key = (row.job_id, row.attempt)
        process = self._begun.get(key)
        if process is None:
            return self._watch.death(row)
        return how_it_died(process, ended[key]) if key in ended else None

    def _recover(self, row: JobRow, death: ExitReason) -> None:
        """Resume a job that has no process any more, or let it fail."""
        state_dir = self._job_environment.state_dir
        log_end = log_event(log_path(state_dir, row.job_id, row.attempt))
        if left_path(state_dir, row.job_id, row.attempt).exists():
            death = replace(death, died=False)
        if death.died and row.deaths + 1 >= DEATHS_MAX:
            log.warning("job %s: %s; it is given up", row.job_id, death.reason)
            self._give_up(row, death, log_end)
            return
        again = take_over(
            self._database,
            row.job_id,
            row.attempt,
            host=self._host.name,
            replica=self._replica,
            limits=None if death.ours else self._limits,
            now_s=time.time(),
            reason=death.reason,
            died=death.died,
            log=log_end,
        )
        if again is not None:
            log.warning("job %s, attempt %d: %s", row.job_id, row.attempt, death.reason)
            self._begin(again)

    def _give_up(self, row: JobRow, death: ExitReason, log_end: Mapping[str, str] | None) -> None:
        deaths = row.deaths + 1
        hint = OUT_OF_MEMORY_HINT if death.out_of_memory else DIED_HINT
        error = WorkerLostError(
            f"the job's process died {deaths} times; the last time, {death.reason}", hint=hint
        )
        problem = problem_of(error, job_id=row.job_id)
        stopped = row.stop_asked_at is not None
        now_s = time.time()
        finish(
            self._database,
            row.job_id,
            row.attempt,
            Ending(
                "stopped" if stopped else "failed",
                error.exit_code,
                error=problem,
                reason=death.reason,
            ),
            now_s=now_s,
            latest=ProgressUpdate([] if log_end is None else [(now_s, "log", log_end)]),
            deaths=deaths,
        )

    def _stop_if_too_long(self, row: JobRow) -> None:
        """Request the stop of a job that has run for longer than the limit. Both times are of this
        replica's clock."""
        most_s, begun_at = self._job_time_max_s, row.begun_at or row.started_at
        if most_s is None or begun_at is None or time.time() - begun_at <= most_s:
            return
        reason = f"it ran longer than a job may here, {_words_of(most_s)} (--max-job-time)"
        log.warning("job %s is asked to stop: %s", row.job_id, reason)
        with contextlib.suppress(NotFoundError):
            self._store.ask_stop(row.job_id, reason, as_failure=True)

    def _stop_by_force(self, row: JobRow) -> None:
        """Kill the process of a job whose stop was requested long ago. The next attempt cleans up,
        and has ten times as long for that."""
        key, now_s = (row.job_id, row.attempt), time.monotonic()
        asked_s = now_s - self._asked.setdefault(key, now_s)
        if (
            not self._is_here(row)
            or row.pid is None
            or asked_s <= self._timing.stop_grace_s * 10**row.deaths
        ):
            return
        log.warning("job %s did not stop in %.0f s: it is killed", row.job_id, asked_s)
        self._asked[key] = now_s
        with contextlib.suppress(ProcessLookupError):
            if self._host.is_alive(row.pid, row.pid_started):
                os.kill(row.pid, signal.SIGKILL)

    def _begin_queued(self) -> None:
        if time.monotonic() < self._none_before_s:
            return
        if self._ray_head is not None and not self._over.is_set():
            joining = self._ray_head.ensure()
            run = replace(self._job_environment.run, ray_address=joining["RAY_ADDRESS"])
            self._job_environment = replace(self._job_environment, run=run, environment=joining)
        while not self._over.is_set():
            row = claim_next(
                self._database,
                host=self._host.name,
                replica=self._replica,
                limits=self._limits,
                now_s=time.time(),
            )
            if row is None:
                return
            log.debug("job %s, attempt %d, is taken from the queue", row.job_id, row.attempt)
            if not self._begin(row):
                return

    def _begin(self, row: JobRow) -> bool:
        """Start a process for the attempt. If that fails (no memory, a full disk) the job goes back
        into the queue: it is not the cause, and another replica may be able to run it."""
        self._note_hosted(row)
        key = (row.job_id, row.attempt)
        try:
            process = JobProcess.begin(row, self._job_environment, self._host)
        except OSError as error:
            log.error("job %s: its process cannot be begun: %s", row.job_id, error)
            self._none_before_s = time.monotonic() + self._timing.unborn_s
            reason = f"its process could not be begun: {error.strerror or error}"
            release(self._database, row.job_id, row.attempt, now_s=time.time(), reason=reason)
            return False
        log.info("job %s, attempt %d: process %d", row.job_id, row.attempt, process.pid)
        self._begun[key] = process
        self._waker.watch(process.pid)
        return True

    def _note_hosted(self, row: JobRow) -> None:
        self._hosted[row.job_id] = None
        self._hosted.move_to_end(row.job_id)
        while len(self._hosted) > HOSTED_KEPT:
            self._hosted.popitem(last=False)


def _words_of(seconds: float) -> str:
    """A time in the largest unit of which it is a whole multiple: ``6 h``."""
    for unit_s, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= unit_s and seconds % unit_s == 0:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds:g} s"


READ_BYTES = 4096


class Wakeup(ClosesOnExit):
    """One thread calls ``wait``, all others ``wake``.

    With a kernel that has no descriptors for processes (Linux before 5.3) the end of a process does
    not wake the thread: it is noticed when the time is up.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self._selector = selectors.DefaultSelector()
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        os.set_blocking(self._write_fd, False)
        self._selector.register(self._read_fd, selectors.EVENT_READ)

    def wake(self) -> None:
        """Make ``wait`` return, now or when it is called next; no effect once it is closed."""
        # The pipe is full: one more byte changes nothing.
        with self._lock, contextlib.suppress(BlockingIOError):
            if not self._closed:
                os.write(self._write_fd, b"\0")

    def watch(self, pid: int) -> None:
        """Make ``wait`` return once that process has ended."""
        with contextlib.suppress(OSError, AttributeError):
            self._selector.register(os.pidfd_open(pid), selectors.EVENT_READ)

    def wait(self, seconds_max: float) -> None:
        """Return when there is something to do, or the time is up."""
        for key, _ in self._selector.select(seconds_max):
            if key.fd == self._read_fd:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._read_fd, READ_BYTES)
            else:
                self._selector.unregister(key.fd)
                os.close(key.fd)

    def close(self) -> None:
        """Close all descriptors. No thread may wait any more."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for key in list(self._selector.get_map().values()):
                os.close(key.fd)
            self._selector.close()
            os.close(self._write_fd)
