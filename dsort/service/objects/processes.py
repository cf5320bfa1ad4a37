"""Files that requests get from shards. A new process makes each file, and ends with the request.

All facts about the content of a shard come from such a process, which writes the answer: the
service sends the answer on, and parses no shard itself. The numbers of processes and of waiting
requests, and their time, are limited.
"""

from __future__ import annotations

import asyncio
import contextlib
import glob
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final
from weakref import WeakValueDictionary

import anyio.to_thread
from msgspec import Struct, to_builtins

from dsort.closing import ClosesOnExit
from dsort.containers.registry import is_supported
from dsort.errors import (
    DsortError,
    InvariantError,
    SpecError,
    SpecProblem,
    StorageError,
    TooManyRequestsError,
    TransformError,
    WorkerLostError,
)
from dsort.service.config import ServiceConfig
from dsort.service.hosting.process import JobEnvironment, interpreter
from dsort.service.objects.places import Entry, ObjectPlace
from dsort.service.objects.shard_main import MEMBERS_FILE, ORDER_FILE, OURS, OUT_DIRECTORY
from dsort.spec.buckets import bucket_value

END_S_MAX: Final = 5.0


class Forks(ClosesOnExit):
    """The process that makes a fork for each order. The first order starts the process. If the
    process dies, the next order starts a new one. ``module``: its program."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._lock = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def begin(self, directory: Path) -> int:
        """Start a child that carries out the order in ``directory``; returns the pipe of the
        child's answer."""
        answer, inside = os.pipe()
        try:
            with self._lock:
                if self.process is None or self.process.poll() is not None:
                    self._start()
                assert self._control is not None
                socket.send_fds(self._control, [os.fsencode(directory)], [inside])
        except OSError as error:
            os.close(answer)
            raise StorageError(f"no process can be begun for the shard: {error.strerror}") from None
        finally:
            os.close(inside)
        return answer

    def _start(self) -> None:
        self._end()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [*interpreter(), self._module],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**JobEnvironment.path_environment(), **OURS},
                cwd="/",
                start_new_session=True,
            )
        self._control = ours

    def _end(self) -> None:
        if self._control is not None:
            self._control.close()
        if self.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(END_S_MAX)
            self.process.kill()
            self.process.wait()

    def close(self) -> None:
        """End the process, and all its children."""
        with self._lock:
            self._end()
            self.process = self._control = None


RUNNING_MAX: Final = 3  # one client gets one process less
WAITING_MAX: Final = 16  # of one client
WAIT_S_MAX: Final = 60.0
ANSWER_BYTES_MAX: Final = 1 << 20
LOOK_S: Final = 1.0
LOOK_S_MAX: Final = 120.0
COUNTS_BYTES_MAX: Final = 4 << 20
HEAD_BYTES_MAX: Final = 512
RETRY_S: Final = 5.0
PREFIX: Final = "dsort-inline-"

Gone = Callable[[], Awaitable[bool]]
"""Whether no client waits for the answer any more."""


class ShardProblemError(Exception):
    """The process failed. ``document``: the problem, as the response contains it."""

    def __init__(self, document: dict[str, Any]) -> None:
        super().__init__(str(document.get("detail", "")))
        self.document = document


class MadeFile(Struct):
    """The made file: open, and without a name."""

    fd: int
    size_bytes: int

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill ``buffer`` from byte ``offset``."""
        while buffer:
            count = os.preadv(self.fd, [buffer], offset)
            if not count:
                raise InvariantError("a file that was made has become shorter")
            buffer, offset = buffer[count:], offset + count


class _Line:
    """The requests of one client: ``own``, the client's turns; and the number of requests that
    wait."""

    def __init__(self) -> None:
        self.own = asyncio.Semaphore(RUNNING_MAX - 1)
        self.waiting = 0


class Turns:
    """The turns of clients, because only a few processes run at once. One turn is always left for
    another client. At most ``WAITING_MAX`` requests of one client wait, each at most ``WAIT_S_MAX``
    seconds. For one event loop."""

    def __init__(self) -> None:
        self._all = asyncio.Semaphore(RUNNING_MAX)
        # A line is dropped when no request holds it any more.
        self._lines: WeakValueDictionary[str, _Line] = WeakValueDictionary()

    @contextlib.asynccontextmanager
    async def one(self, client: str) -> AsyncIterator[None]:
        """A context in which the client has a turn. ``TooManyRequestsError`` if the client gets no
        turn in time."""
        line = self._lines.setdefault(client, _Line())
        if line.waiting >= WAITING_MAX:
            raise TooManyRequestsError(
                f"{client} waits for {WAITING_MAX} shards already",
                retry_after_s=RETRY_S,
                hint="read fewer at once",
            )
        async with contextlib.AsyncExitStack() as turn:
            line.waiting += 1
            try:
                async with asyncio.timeout(WAIT_S_MAX):
                    # In this order: a client that waits for its own turns does not yet wait for the
                    # turns of all, where other clients would have to wait behind it.
                    await turn.enter_async_context(line.own)
                    await turn.enter_async_context(self._all)
            except TimeoutError:
                raise TooManyRequestsError(
                    f"{RUNNING_MAX} shards are being worked on, as many as may be at once",
                    retry_after_s=RETRY_S,
                ) from None
            finally:
                line.waiting -= 1
            yield


class ShardProcesses(ClosesOnExit):
    """Runs processes that make files. ``module``: their program."""

    def __init__(self, config: ServiceConfig, module: str) -> None:
        self._environment = JobEnvironment.of(config)
        self._scratch = config.scratch_dir
        self._indexes = config.state_dir / "indexes"  # indexes that jobs do not use
        self._turns = Turns()
        self._prefix = f"{PREFIX}{config.replica}-"  # replicas may share a scratch directory
        self.forks = Forks(module)

    def close(self) -> None:
        """End the processes."""
        self.forks.close()

    def remove_left(self) -> None:
        """Remove the files that a dead service has left."""
        if self._scratch is not None:
            for path in self._scratch.glob(f"{glob.escape(self._prefix)}*"):
                shutil.rmtree(path, ignore_errors=True)

    async def look(
        self,
        place: ObjectPlace,
        order: dict[str, Any],
        gone: Gone,
        *,
        seconds_max: float = LOOK_S_MAX,
    ) -> tuple[MadeFile, ExitStack]:
        """(the answer of the process about the shard or the bucket at the place, the object to
        close after sending). ``SpecError`` if the place is an object that is no shard;
        ``ShardProblemError``, ``DsortError``."""
        if place.name and not is_supported(place.name):
            text = "is not that of a shard: only shards have records"
            raise SpecError([SpecProblem("name", text)])
        fetch = place.policy().to_json()
        bucket = {"bucket": bucket_value(place.ref), "uri": place.uri, "name": place.name}
        async with self._turns.one(place.client):
            return await self.made(
                {**bucket, "fetch": fetch, **order}, MEMBERS_FILE, gone, seconds_max=seconds_max
            )

    async def counts(self, place: ObjectPlace, shards: list[Entry], gone: Gone) -> dict[str, int]:
        """The numbers of records of these shards, by name, where they are known."""
        sizes = [each.size_bytes for each in shards]
        order = {"look": "counts", "names": [each.name for each in shards], "sizes": sizes}
        try:
            made, ends = await self.look(place, order, gone)
        except (ShardProblemError, DsortError):
            return {}  # the shards are shown without their counts
        with ends:
            text = bytearray(min(made.size_bytes, COUNTS_BYTES_MAX))
            made.read_into(memoryview(text), 0)
        found: dict[str, int] = json.loads(text)["records"]
        return found

    async def made(
        self, order: Mapping[str, Any], name: str, gone: Gone, *, seconds_max: float
    ) -> tuple[MadeFile, ExitStack]:
        """(the file ``name`` that a process makes from ``order``, the object to close in the end).
        ``ShardProblemError``, ``DsortError`` if the file could not be made."""
        directory = await anyio.to_thread.run_sync(self._directory)
        with ExitStack() as ends:
            ends.callback(shutil.rmtree, directory, ignore_errors=True)
            await self._run(order, directory, gone, seconds_max)
            path = directory / OUT_DIRECTORY / name
            # A user's code may have put a link there.
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            ends.callback(os.close, fd)
            return MadeFile(fd, os.fstat(fd).st_size), ends.pop_all()

    def _directory(self) -> Path:
        """A directory for one process, beside the scratch of jobs."""
        if self._scratch is not None:
            self._scratch.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=self._prefix, dir=self._scratch))
        (made / OUT_DIRECTORY).mkdir()
        return made.resolve()

    async def _run(
        self, order: Mapping[str, Any], directory: Path, gone: Gone, seconds_max: float
    ) -> None:
        """Run a process that carries out the order in ``directory``."""

        def begin() -> int:
            text = json.dumps({**self._around(), **order}, default=str)
            (directory / ORDER_FILE).write_bytes(text.encode())
            return self.forks.begin(directory)

        pipe = os.fdopen(await anyio.to_thread.run_sync(begin), "rb")
        reader = asyncio.StreamReader(limit=ANSWER_BYTES_MAX)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        child = -1
        try:
            async with asyncio.timeout(seconds_max):
                with contextlib.suppress(ProcessLookupError):  # the process has ended already
                    number = int(await reader.readline() or b"0")
                    child = os.pidfd_open(number) if number else -1
                answer = asyncio.create_task(reader.readline())
                while not answer.done():
                    await asyncio.wait({answer}, timeout=LOOK_S)
                    if not answer.done() and await gone():
                        raise TransformError("the request for this shard has ended")
                said = answer.result()
        except TimeoutError:
            raise TransformError(
                f"to work on the shard took longer than {seconds_max:.0f} s",
                hint="`dsort transform` and `dsort cat` have no limit of time",
            ) from None
        finally:
            transport.close()
            if child >= 0:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(child, signal.SIGKILL)
                os.close(child)
        _refuse_problem(said)

    def _around(self) -> dict[str, Any]:
        """The part of an order that is the same for all processes; the order itself names the
        places that the process may use."""
        run = self._environment.run
        return {
            "root": str(run.root),
            "indexes": str(self._indexes),
            "memory_max_bytes": run.memory_max_bytes,
            "bandwidth_max_bytes_per_s": run.bandwidth_max_bytes_per_s,
            "settings": to_builtins(run.settings, enc_hook=str),
        }


def _refuse_problem(answer: bytes) -> None:
    """``ShardProblemError`` if the process reports a problem."""
    try:
        said = json.loads(answer[:ANSWER_BYTES_MAX])
        if said == {}:
            return
        document = dict(said["problem"])
        if not 400 <= int(document["status"]) < 600:
            raise ValueError("it is no problem")
    except (LookupError, TypeError, ValueError):
        raise WorkerLostError(
            "the process that worked on the shard died",
            hint="memory may have run out: `dsort transform` may use more memory",
        ) from None
    raise ShardProblemError(document)


class MemberPart(Struct, frozen=True):
    """Bytes ``start`` to ``stop`` of a member of ``size_bytes``; these bytes begin at byte ``at``
    of ``made``. ``status``: 200 for the whole member, 206 for a range of it, 416 for a range
    outside of it."""

    made: MadeFile
    at: int
    status: int
    size_bytes: int
    start: int

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the response about ranges."""
        stop = self.start + self.made.size_bytes - self.at
        sent = {206: f"bytes {self.start}-{stop - 1}/", 416: "bytes */"}.get(self.status)
        ranges = {} if sent is None else {"Content-Range": f"{sent}{self.size_bytes}"}
        return {"Accept-Ranges": "bytes", **ranges}

    @classmethod
    def of(cls, made: MadeFile) -> MemberPart:
        """The part of a member that the process of the shard has written."""
        head = bytearray(min(made.size_bytes, HEAD_BYTES_MAX))
        made.read_into(memoryview(head), 0)
        line, _, _ = head.partition(b"\n")
        said = json.loads(line)
        status, size_bytes = int(said["status"]), int(said["size_bytes"])
        return cls(made, len(line) + 1, status, size_bytes, int(said.get("start", 0)))
