"""The dispatcher begins the jobs of the queue, each in a process of its own, and watches them.

If a job's process dies, a new process resumes the job. After the third death the job fails. The
dispatcher itself may end at any time: jobs run on, and the next dispatcher finds them by their
rows. A dispatcher never looks into a bucket: the database has the attempts and their heartbeats."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from dsort.durations import format_duration
from dsort.errors import NotFoundError, WorkerLostError
from dsort.job.setup.resources import cores
from dsort.log_lines import logger_of
from dsort.runtime.ray.cluster import check_ray_version
from dsort.service.config import ServiceConfig
from dsort.service.database.engine import Database
from dsort.service.database.tables import JobRow
from dsort.service.hosting.process import (
    AttemptKey,
    ExitReason,
    Host,
    JobEnvironment,
    JobProcess,
    Watch,
    how_it_died,
    key_of,
    log_event,
    log_path,
)
from dsort.service.hosting.ray_head import RayHead
from dsort.service.jobs.queue import (
    Ending,
    Limits,
    ProgressUpdate,
    claim_next,
    finish,
    hand_over,
    take_over,
)
from dsort.service.jobs.store import JobStore
from dsort.service.problems import problem_of
from dsort.service.threads import DATABASE_AWAY, TurnThread

DEATHS_MAX = 3
HOSTED_KEPT = 10_000
LEAVE_S_MAX: Final = 9.0
"""The time for processes to leave their jobs; then the dispatcher kills the processes."""
KILL_S_MAX: Final = 1.0
HAND_OVER_S_MAX: Final = LEAVE_S_MAX + KILL_S_MAX
LOOK_S: Final = 0.02
OUT_OF_MEMORY_HINT = (
    "give the job more memory (--max-memory, fewer jobs at once) or smaller work (max_mem_usage, "
    "fewer --workers), then resume the job: finished work is kept"
)
DIED_HINT = (
    "`dsort log` shows the last lines of the process; mend the cause, then resume the job: "
    "finished work is kept"
)

log = logger_of("service")


class Timing(Struct, frozen=True):
    """Durations in seconds: the longest and the shortest pause between two turns; how long a job
    may continue after a request to stop, before its process is killed; and the pause after a
    failure to start a process."""

    look_s: float = 1.0
    rest_s: float = 0.02
    stop_grace_s: float = 60.0
    unborn_s: float = 5.0


class Dispatcher(TurnThread):
    """Runs the jobs of one replica, from ``start`` to ``close``, in a thread of its own."""

    def __init__(
        self, config: ServiceConfig, database: Database, *, timing: Timing | None = None
    ) -> None:
        self._timing = timing or Timing()
        super().__init__("dsort-dispatcher", self._timing.look_s)
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
        self._host = Host()
        self._watch = Watch(self._host, config.replica)
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
        self._begun: dict[AttemptKey, JobProcess] = {}
        self._none_before_s = 0.0  # no process is started before this time
        self._asked: dict[AttemptKey, float] = {}
        self._hosted: OrderedDict[str, None] = OrderedDict()

    def hosts(self, job_id: str) -> bool:
        """Whether the job runs, or ran, on this replica."""
        return job_id in self._hosted

    def rest(self) -> None:
        """Begin no more jobs, because the service is about to end. From any thread, or a signal."""
        self._over.set()

    def close(self) -> None:
        """End the dispatcher. As the operator has configured, jobs run on or are handed over;
        ``handed_over``: the number of jobs that were handed over. The service's own Ray ends if no
        jobs run."""
        super().close()  # first, because the thread would begin jobs again that are handed over
        if self._hands_over:
            self.handed_over = self._hand_over()
        if self._ray_head is not None and not self._any_running():
            self._ray_head.stop()

    def _is_here(self, row: JobRow) -> bool:
        return row.host == self._host.name and row.replica == self._replica

    def _any_running(self) -> bool:
        """Whether a job of this replica may be running."""
        try:
            return any(row.replica == self._replica for row in self._store.running())
        except DATABASE_AWAY:
            return True

    # -- handing over ------------------------------------------------------------------------------

    def _hand_over(self) -> int:
        """End the processes of this replica's jobs; returns the number of jobs that are handed
        over. A process that receives SIGTERM puts its job into the queue and releases its lease. If
        a process does not end in time, the dispatcher kills it and puts its job back, and the lease
        lapses."""
        try:
            rows = [row for row in self._store.running() if self._is_here(row)]
        except DATABASE_AWAY as error:
            log.warning("jobs cannot be handed over; other replicas notice after 30 s: %s", error)
            rows = []
        for number, seconds_max in ((signal.SIGTERM, LEAVE_S_MAX), (signal.SIGKILL, KILL_S_MAX)):
            for pid in self._living(rows):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            until_s = time.monotonic() + seconds_max
            while self._living(rows) and time.monotonic() < until_s:
                time.sleep(LOOK_S)
        reason, handed = "the service that ran it has ended", 0
        with contextlib.suppress(*DATABASE_AWAY):
            for row in rows:
                hand_over(self._database, *key_of(row), now_s=time.time(), reason=reason)
                found = self._store.get(row.job_id)
                handed += found is not None and not found.ended
        return handed

    def _living(self, rows: Iterable[JobRow]) -> list[int]:
        """The processes of jobs of this replica that run."""
        begun = [each.popen.pid for each in self._begun.values() if each.exit_code is None]
        return begun + [
            row.pid
            for row in rows
            if key_of(row) not in self._begun
            and row.pid is not None
            and self._host.is_alive(row.pid, row.pid_started)
        ]

    # -- the thread -------------------------------------------------------------------------------

    def _turn(self) -> float:
        self._over.wait(self._timing.rest_s)  # so that many wake-ups at once cause one turn
        try:
            self._see_after()
            self._begin_queued()
        except DATABASE_AWAY:
            self._watch.forget()
            raise
        return self._timing.look_s

    def _see_after(self) -> None:
        running = self._store.running()
        ended = {
            key: code
            for key, process in self._begun.items()
            if (code := process.exit_code) is not None
        }
        deaths = self._watch.deaths(row for row in running if key_of(row) not in self._begun)
        deaths |= {key: how_it_died(self._begun[key], code) for key, code in ended.items()}
        asked = self._asked
        # Attempts that have ended are dropped; otherwise the dict would grow without limit.
        self._asked = {key_of(row): asked[key_of(row)] for row in running if key_of(row) in asked}
        for row in running:
            if row.replica == self._replica:
                self._note_hosted(row)
            death = deaths.get(key_of(row))
            if death is not None:
                self._recover(row, death)
            elif row.stop_asked_at is not None:
                self._stop_by_force(row)
            elif row.replica == self._replica:
                self._stop_if_too_long(row)
        for key, code in ended.items():
            log.debug("job %s, attempt %d: its process ended with code %d", *key, code)
            del self._begun[key]

    def _recover(self, row: JobRow, death: ExitReason) -> None:
        """Resume a job that has no process any more, or let it fail."""
        state_dir = self._job_environment.state_dir
        log_end = log_event(log_path(state_dir, row.job_id, row.attempt))
        if death.died and row.deaths + 1 >= DEATHS_MAX:
            log.warning("job %s: %s; the job is given up", row.job_id, death.reason)
            self._give_up(row, death, log_end)
            return
        self._join_ray()  # the end of Ray may have ended the process
        again = take_over(
            self._database,
            row.job_id,
            row.attempt,
            host=self._host.name,
            replica=self._replica,
            limits=self._limits,
            now_s=time.time(),
            reason=death.reason,
            died=death.died,
            log=log_end,
        )
        # None: the job ended after its row was read, or another replica was faster.
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
        reason = f"it ran longer than {format_duration(most_s)} (--max-job-time)"
        log.warning("job %s is stopped: %s", row.job_id, reason)
        with contextlib.suppress(NotFoundError):
            self._store.ask_stop(row.job_id, reason, as_failure=True)

    def _stop_by_force(self, row: JobRow) -> None:
        """Kill the process of a job whose stop was requested long ago. The next attempt cleans up,
        and has ten times as long for that."""
        key, now_s = key_of(row), time.monotonic()
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
        self._join_ray()  # first: if Ray does not start, no job is taken from the queue
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

    def _join_ray(self) -> None:
        """Start the service's own Ray, if the service has one that does not run, for the processes
        that begin from now on. ``WorkerLostError``."""
        if self._ray_head is not None and not self._over.is_set():
            joining = self._ray_head.ensure()
            run = replace(self._job_environment.run, ray_address=joining["RAY_ADDRESS"])
            self._job_environment = replace(self._job_environment, run=run, environment=joining)

    def _begin(self, row: JobRow) -> bool:
        """Start a process for the attempt. If that fails (no memory, a full disk), the job goes
        back into the queue, because the job is not the cause, and another replica may be able to
        run the job."""
        self._note_hosted(row)
        try:
            process = JobProcess.begin(row, self._job_environment)
        except OSError as error:
            log.error("job %s: its process cannot be begun: %s", row.job_id, error)
            self._none_before_s = time.monotonic() + self._timing.unborn_s
            reason = f"its process could not be begun: {error.strerror or error}"
            key, now_s = key_of(row), time.time()
            hand_over(self._database, *key, now_s=now_s, reason=reason, has_begun=False)
            return False
        log.info("job %s, attempt %d: process %d", row.job_id, row.attempt, process.popen.pid)
        self._begun[key_of(row)] = process
        threading.Thread(target=self._await_end, args=(process,), daemon=True).start()
        return True

    def _await_end(self, process: JobProcess) -> None:
        process.popen.wait()
        self._woken.set()

    def _note_hosted(self, row: JobRow) -> None:
        self._hosted[row.job_id] = None
        self._hosted.move_to_end(row.job_id)
        while len(self._hosted) > HOSTED_KEPT:
            self._hosted.popitem(last=False)
