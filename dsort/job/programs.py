"""Programs that a job's spec names. They run without a shell, each in its own process group.

``on_shard`` runs for each output shard after the manifest is written. ``on_shard.json`` has the
progress, written at most once a second: if dsort dies, the program runs again for the shards of the
last second. Programs of a recipe run only on this machine, and only if the spec allows them."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from msgspec import Struct

from dsort.data.json_values import Count, json_bytes
from dsort.errors import InputError, ObjectNotFoundError, ShardCommandError, SpecError
from dsort.options import RunOptions
from dsort.results.layout import on_shard_name
from dsort.results.manifest import ManifestOutput
from dsort.sizes import format_bytes
from dsort.spec.model import JobSpec
from dsort.spec.outputs import OnShard
from dsort.stop_flag import StopFlag
from dsort.storage.bucket import Bucket
from dsort.storage.small_objects import parse_as, read_small
from dsort.user_code.process import outside_environment

if TYPE_CHECKING:
    from dsort.loose_files.gather import WrittenBy

SHOWN_BYTES: Final = 4096
"""How many bytes of a program's messages are kept: the last bytes."""
CLOSING_S_MAX: Final = 1.0


class Command:
    """A running program. The end of its standard error is kept. The end of its standard output is
    kept, too, unless ``is_source`` makes this output available as ``stdout``.

    ``InputError`` if it cannot be started."""

    def __init__(
        self, words: Sequence[str], *, is_source: bool, variables: Mapping[str, str] | None = None
    ) -> None:
        self.program = Path(words[0]).name
        self._tail = b""
        read_fd, write_fd = os.pipe()
        try:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if is_source else write_fd,
                stderr=write_fd,
                env={**outside_environment(), **(variables or {})},
                start_new_session=True,  # so that processes that it starts can be ended with it
            )
        except (OSError, ValueError) as error:
            os.close(read_fd)
            raise InputError(f"the program {self.program} cannot be run: {error}") from None
        finally:
            os.close(write_fd)
        self._reader = threading.Thread(target=self._keep_tail, args=(read_fd,), daemon=True)
        self._reader.start()

    @property
    def stdout(self) -> IO[bytes]:
        """The standard output of the program."""
        assert self._process.stdout is not None
        return self._process.stdout

    def wait(self, seconds_max: float | None = None) -> str:
        """Wait for the program; returns why it failed, "" on success. Ends all that it has
        started."""
        try:
            exit_code = self._process.wait(seconds_max)
        except subprocess.TimeoutExpired:
            self.end()
            return f"took longer than {seconds_max:g} s, and was ended"
        self.end()
        if exit_code == 0:
            return ""
        ended = f"ended with {exit_code}" if exit_code > 0 else f"was ended by signal {-exit_code}"
        said = self._tail.decode("utf-8", "replace").strip().splitlines()
        return f"{ended}: {said[-1]}" if said else ended

    def end(self) -> None:
        """End the program, with all that it has started. It may have ended already."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(CLOSING_S_MAX)

    def _keep_tail(self, read_fd: int) -> None:
        with open(read_fd, "rb", buffering=0) as said:
            while piece := said.read(1 << 16):
                self._tail = (self._tail + piece)[-SHOWN_BYTES:]


class Running:
    """Programs that run side by side, and are ended together."""

    def __init__(self) -> None:
        self._commands: set[Command] = set()
        self._lock = threading.Lock()
        self._ended = False

    def start(
        self, words: Sequence[str], *, is_source: bool, variables: Mapping[str, str] | None = None
    ) -> Command:
        """Start a program. ``InputError`` if it cannot be started, or if ``end`` was called
        before."""
        with self._lock:
            if self._ended:
                raise InputError(f"the program {words[0]} was not started: another program failed")
            command = Command(words, is_source=is_source, variables=variables)
            self._commands.add(command)
        return command

    def drop(self, command: Command) -> None:
        """Remove a program that has ended."""
        self._commands.discard(command)

    def end(self) -> None:
        """End the programs that still run, with all processes that they have started."""
        with self._lock:
            self._ended = True
            running = list(self._commands)
        for command in running:
            command.end()


BYTES_MAX: Final = 64 << 20
"""The most bytes that all programs of a recipe may write: their output is held in memory, and every
worker receives it."""
READ_BYTES: Final = 1 << 18
AT_ONCE_MAX: Final = 4


class Programs:
    """Runs programs, and ends those that still run when the job stops."""

    def __init__(self) -> None:
        self.running = Running()
        self._lock = threading.Lock()
        self._left = BYTES_MAX

    def written_by(self, lines: Sequence[tuple[str, str]]) -> list[bytes]:
        """The output of each program. ``lines``: the place of each line, for errors, and its
        command. The command is split into words as a shell does it, and run without a shell.
        ``InputError`` at the first program that fails."""
        with ThreadPoolExecutor(AT_ONCE_MAX) as threads:
            try:
                return list(threads.map(lambda line: self._run(*line), lines))
            except BaseException:
                self.running.end()  # the output of the others is not needed any more
                raise

    def _run(self, where: str, text: str) -> bytes:
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise InputError(f"{where}: {text!r:.80} is no command: {error}") from None
        if not words or not words[0]:
            raise InputError(f"{where} names no program", hint="000001.jpg pipe:curl -sf URL")
        try:
            command = self.running.start(words, is_source=True)
        except InputError as error:
            raise InputError(f"{where}: {error.message}") from None
        try:
            data = self._read(command, where)
            why = command.wait()
        finally:
            command.end()
            self.running.drop(command)
        if why:
            raise InputError(
                f"{where}: the program {command.program} {why}",
                hint="its output may be incomplete, so none of it is used",
            )
        return data

    def _read(self, command: Command, where: str) -> bytes:
        pieces = []
        with command.stdout as written:
            while piece := written.read(READ_BYTES):
                with self._lock:
                    self._left -= len(piece)
                if self._left < 0:
                    raise InputError(
                        f"{where}: the programs of the recipe write more than "
                        f"{format_bytes(BYTES_MAX)} in all",
                        hint="write the output to files, and name the files in the recipe",
                    )
                pieces.append(piece)
        return b"".join(pieces)


@contextmanager
def opened_programs(spec: JobSpec, options: RunOptions) -> Iterator[WrittenBy | None]:
    """A function that runs the programs that a recipe names; None if the spec does not allow any.
    ``SpecError`` for specs from the network, whose programs are not run on this machine."""
    if not spec.ingest or not spec.ingest.pipes:
        yield None
        return
    if options.fetch:
        raise SpecError("ingest.pipes is not for specs that come over the network")
    programs = Programs()
    try:
        yield programs.written_by
    finally:
        programs.running.end()


NOTED_EVERY_S: Final = 1.0
NOTED_BYTES_MAX: Final = 1 << 20
LOOKED_AT_S: Final = 0.1


class _Noted(Struct):
    """The shards for which the program has been run: the first ``done`` ones, and the ordinals
    ``more``."""

    done: Count
    more: set[int]


def shards_left(bucket: Bucket, job_id: str, shards: int) -> list[int]:
    """The ordinals of shards, of ``shards`` in all, for which the program has not been run."""
    name = on_shard_name(job_id)
    try:
        data = read_small(bucket, name, bytes_max=NOTED_BYTES_MAX)
    except ObjectNotFoundError:
        return [*range(shards)]
    noted = parse_as(data, f"{name} in {bucket.uri}", _Noted)
    return [ordinal for ordinal in range(noted.done, shards) if ordinal not in noted.more]


def run_on_shards(
    wanted: OnShard,
    job_id: str,
    bucket: Bucket,
    outputs: Sequence[ManifestOutput],
    *,
    stop: StopFlag,
    warn: Callable[[str], None],
) -> None:
    """Run the program for all shards for which it has not been run. ``ShardCommandError`` at the
    first failure, unless failures are warnings; ``JobStoppedError`` if the job has to stop."""
    left = shards_left(bucket, job_id, len(outputs))
    if not left:
        return
    runs = _Runs(wanted, job_id, bucket, outputs, set(range(len(outputs))) - set(left))
    with ThreadPoolExecutor(wanted.at_once) as threads:
        try:
            runs.do(left, threads, stop, warn)
        finally:
            runs.running.end()


class _Runs:
    """The runs of one program, for some shards of a result."""

    def __init__(
        self,
        wanted: OnShard,
        job_id: str,
        bucket: Bucket,
        outputs: Sequence[ManifestOutput],
        done: set[int],
    ) -> None:
        self._wanted, self._job_id, self._bucket = wanted, job_id, bucket
        self._outputs, self._done = outputs, done
        self._first = 0  # the program ran for all shards before this one
        self._noted_s = 0.0
        self.running = Running()

    def do(
        self,
        left: Sequence[int],
        threads: ThreadPoolExecutor,
        stop: StopFlag,
        warn: Callable[[str], None],
    ) -> None:
        waiting, under_way = iter(left), dict[Future[str], int]()
        failure = ""
        try:
            while True:
                room = 0 if failure else self._wanted.at_once - len(under_way)
                for ordinal in islice(waiting, room):
                    under_way[threads.submit(self._run, ordinal)] = ordinal
                if not under_way:
                    break
                ended, _ = wait(under_way, LOOKED_AT_S, FIRST_COMPLETED)
                stop.raise_if_requested()
                for each in ended:
                    ordinal, why = under_way.pop(each), each.result()
                    if why and self._wanted.on_error == "warn":
                        warn(f"on_shard: {self._words(ordinal, why)}")
                    elif why:
                        failure = failure or self._words(ordinal, why)
                        continue
                    self._note(ordinal)
        finally:
            self._write()
        if failure:
            raise ShardCommandError(
                f"{failure}; the result is committed, and on_shard is done for {len(self._done):,} "
                f"of {len(self._outputs):,} shards",
                hint=f"`dsort resume {self._job_id} --run-code` runs on_shard for the other shards",
            )

    def _run(self, ordinal: int) -> str:
        """Run the program for a shard; returns why it failed, "" on success."""
        shard = self._outputs[ordinal]
        path = str(self._bucket.local_path(shard.name) or f"{self._bucket.uri}/{shard.name}")
        stands_for = {"{shard}": shard.name, "{path}": path}
        words = [_filled(word, stands_for) for word in self._wanted.exec]
        variables = {
            "DSORT_JOB_ID": self._job_id,
            "DSORT_SHARD": shard.name,
            "DSORT_PATH": path,
            "DSORT_RECORDS": str(shard.records),
            "DSORT_FILE_BYTES": str(shard.file_bytes),
            "DSORT_XXH3": shard.xxh3,
        }
        try:
            command = self.running.start(words, is_source=False, variables=variables)
        except InputError as error:
            return error.message
        why = command.wait(self._wanted.timeout)
        self.running.drop(command)
        return why and f"the program {command.program} {why}"

    def _words(self, ordinal: int, why: str) -> str:
        return f"shard {self._outputs[ordinal].name}: {why}"

    def _note(self, ordinal: int) -> None:
        self._done.add(ordinal)
        if time.monotonic() - self._noted_s >= NOTED_EVERY_S:
            self._write()

    def _write(self) -> None:
        while self._first in self._done:
            self._first += 1
        more = sorted(ordinal for ordinal in self._done if ordinal > self._first)
        content = {"done": self._first, "more": more}
        self._bucket.write(on_shard_name(self._job_id), json_bytes(content))
        self._noted_s = time.monotonic()


def _filled(word: str, stands_for: dict[str, str]) -> str:
    """``word`` with its fields replaced. Values are not searched for fields: names may have
    braces."""
    for field, value in stands_for.items():
        if field in word:
            before, _, after = word.partition(field)
            return f"{_filled(before, stands_for)}{value}{_filled(after, stands_for)}"
    return word
