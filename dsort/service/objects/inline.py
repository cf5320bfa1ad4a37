"""Shards that are transformed on their way out: each a job of one shard, in a process of its own.

The result is what ``dsort transform`` would have written, byte for byte. It is whole before its
first byte is sent: so a record at which a step fails becomes an error, and no shard that ends too
soon. Processes, waiting requests, time and size are bounded."""

from __future__ import annotations

import asyncio
import contextlib
import glob
import json
import os
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import anyio.to_thread

from dsort.closing import ClosesOnExit
from dsort.errors import (
    InvariantError,
    SpecError,
    SpecProblem,
    TooLargeError,
    TooManyRequestsError,
    TransformError,
    WorkerLostError,
)
from dsort.job.kept_names import kept_name
from dsort.naming.names import archive_extension
from dsort.service.config import ServiceConfig
from dsort.service.hosting.environment import JobEnvironment
from dsort.service.jobs.submit import Submitter
from dsort.service.objects.forks import Forks
from dsort.service.objects.places import ObjectPlace
from dsort.service.objects.transform_main import ORDER_FILE
from dsort.sizes import format_bytes
from dsort.spec.buckets import bucket_value
from dsort.spec.model import JobSpec

__all__ = [
    "INLINE_BYTES_MAX",
    "InlineTransforms",
    "ShardProblemError",
    "TransformedShard",
    "inline_spec",
]

INLINE_BYTES_MAX: Final = 4 << 30
"""A shard that is larger is for a job."""
RUNNING_MAX: Final = 2
WAITING_MAX: Final = 16  # of one client
WAIT_S_MAX: Final = 60.0
RUN_S_MAX: Final = 600.0
ANSWER_BYTES_MAX: Final = 1 << 20
LOOK_S: Final = 1.0
RETRY_S: Final = 5.0
PREFIX: Final = "dsort-inline-"


class ShardProblemError(Exception):
    """The job failed. ``document``: the problem, as an answer says it."""

    def __init__(self, document: dict[str, Any]) -> None:
        super().__init__(str(document.get("detail", "")))
        self.document = document


@dataclass(slots=True)
class TransformedShard:
    """A shard that is done, as an open file that has no name any more."""

    fd: int
    size_bytes: int

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill ``buffer`` from byte ``offset``."""
        while buffer:
            count = os.preadv(self.fd, [buffer], offset)
            if not count:
                raise InvariantError("a transformed shard has become shorter")
            buffer, offset = buffer[count:], offset + count


def inline_spec(place: ObjectPlace, use: str, directory: Path) -> dict[str, Any]:
    """The spec of the job that transforms one shard. ``SpecError`` if the object is none."""
    extension = archive_extension(place.name)
    if extension is None:
        raise SpecError([SpecProblem("name", "is not that of a shard: only shards have records")])
    return {
        "input_bck": bucket_value(place.ref),
        "input_format": {"objnames": [place.name]},
        "input_extension": extension,
        "output_bck": f"file://{directory}",
        "keep_shards": True,
        "algorithm": {"kind": "none"},
        "transform": {"use": use},
    }


class InlineTransforms(ClosesOnExit):
    """Transforms shards for requests."""

    def __init__(self, config: ServiceConfig, submitter: Submitter) -> None:
        self._environment = JobEnvironment.of(config)
        self._submitter = submitter
        self._scratch = config.scratch_dir
        self._prefix = f"{PREFIX}{config.replica}-"  # replicas may share a scratch directory
        self.forks = Forks()
        self.turns = asyncio.Semaphore(RUNNING_MAX)
        self._waiting: Counter[str] = Counter()

    def close(self) -> None:
        """End the processes."""
        self.forks.close()

    def remove_left(self) -> None:
        """Remove what a service that died has left."""
        if self._scratch is not None:
            for path in self._scratch.glob(f"{glob.escape(self._prefix)}*"):
                shutil.rmtree(path, ignore_errors=True)

    def spec(self, place: ObjectPlace, use: str) -> JobSpec:
        """The checked spec of the job, but for where it writes. ``SpecError`` if there is no such
        transform, ``ForbiddenError`` if it may not run."""
        return self._submitter.read_inline(inline_spec(place, use, Path("/unknown")))

    async def run(
        self, spec: JobSpec, size_bytes: int, client: str, gone: Callable[[], Awaitable[bool]]
    ) -> tuple[TransformedShard, ExitStack]:
        """The shard, and what to close once it is sent. ``gone``: whether nobody waits for it any
        more. ``ShardProblemError``, ``DsortError``: why there is none."""
        if size_bytes > INLINE_BYTES_MAX:
            raise TooLargeError(
                f"the shard has {format_bytes(size_bytes)}, over {format_bytes(INLINE_BYTES_MAX)}",
                hint="`dsort transform` makes all of a bucket's shards, of any size",
            )
        async with self._turn(client):
            directory = await anyio.to_thread.run_sync(self._directory)
            with ExitStack() as ends:
                ends.callback(shutil.rmtree, directory, ignore_errors=True)
                await self._transform(spec, directory, gone)
                (shard,) = spec.sources[0].format.objnames or ("",)
                name = kept_name(shard, spec.output_extension)
                fd = os.open(directory / "out" / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
                ends.callback(os.close, fd)
                return TransformedShard(fd, os.fstat(fd).st_size), ends.pop_all()

    @contextlib.asynccontextmanager
    async def _turn(self, client: str) -> AsyncIterator[None]:
        """While one of the few processes is ours. ``TooManyRequestsError`` if that takes long."""
        if self._waiting[client] >= WAITING_MAX:
            raise TooManyRequestsError(
                f"{client} waits for {WAITING_MAX} transformed shards already",
                retry_after_s=RETRY_S,
                hint="read fewer at once; `dsort transform` makes them all beforehand",
            )
        self._waiting[client] += 1
        try:
            async with asyncio.timeout(WAIT_S_MAX):
                await self.turns.acquire()
        except TimeoutError:
            raise TooManyRequestsError(
                f"{RUNNING_MAX} shards are being transformed, as many as may be at once",
                retry_after_s=RETRY_S,
            ) from None
        finally:
            self._waiting[client] -= 1
            if not self._waiting[client]:
                del self._waiting[client]
        try:
            yield
        finally:
            self.turns.release()

    def _directory(self) -> Path:
        """For the job alone: beside the scratch of others."""
        if self._scratch is not None:
            self._scratch.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=self._prefix, dir=self._scratch))
        (made / "out").mkdir()
        return made.resolve()

    async def _transform(
        self, spec: JobSpec, directory: Path, gone: Callable[[], Awaitable[bool]]
    ) -> None:
        """Do the job in ``directory``."""

        def begin() -> int:
            (directory / ORDER_FILE).write_bytes(self._order(spec))
            return self.forks.begin(directory)

        pipe = os.fdopen(await anyio.to_thread.run_sync(begin), "rb")
        reader = asyncio.StreamReader(limit=ANSWER_BYTES_MAX)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        child = -1
        try:
            async with asyncio.timeout(RUN_S_MAX):
                with contextlib.suppress(ProcessLookupError):  # it is done already
                    number = int(await reader.readline() or b"0")
                    child = os.pidfd_open(number) if number else -1
                answer = asyncio.create_task(reader.readline())
                while not answer.done():
                    await asyncio.wait({answer}, timeout=LOOK_S)
                    if not answer.done() and await gone():
                        raise TransformError("nobody waits for the shard any more")
                said = answer.result()
        except TimeoutError:
            raise TransformError(
                f"to transform the shard took longer than {RUN_S_MAX:.0f} s",
                hint="`dsort transform` has all the time that it takes",
            ) from None
        finally:
            transport.close()
            if child >= 0:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(child, signal.SIGKILL)
                os.close(child)
        _refuse_problem(said)

    def _order(self, spec: JobSpec) -> bytes:
        """What the process is told. Links are followed as they are now."""
        run = self._environment.options()
        assert run.fetch is not None, "specs come over the network"
        order = {
            "spec": spec.canonical(),
            "root": str(run.root),
            "memory_max_bytes": run.memory_max_bytes,
            "bandwidth_max_bytes_per_s": run.bandwidth_max_bytes_per_s,
            "settings": asdict(run.settings),
            "fetch": run.fetch.to_json(),
        }
        return json.dumps(order, default=str).encode()


def _refuse_problem(answer: bytes) -> None:
    """``ShardProblemError``: the process says that it is not done."""
    try:
        said = json.loads(answer[:ANSWER_BYTES_MAX])
        if said == {}:
            return
        document = dict(said["problem"])
        if not 400 <= int(document["status"]) < 600:
            raise ValueError("it is no problem")
    except (LookupError, TypeError, ValueError):
        raise WorkerLostError(
            "the process that transformed the shard died",
            hint="memory may have run out: `dsort transform` uses more of it",
        ) from None
    raise ShardProblemError(document)
