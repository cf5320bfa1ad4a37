"""Streams of a job: standard input, standard output, and the output of programs."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Final

from dsort.errors import InputError, SpecError, SpecProblem, StorageError, StorageFullError
from dsort.job.programs import Running
from dsort.job.setup.inputs import listed_names
from dsort.naming.names import check_object_name
from dsort.options import RunOptions
from dsort.sizes import format_bytes
from dsort.spec.input_rules import SHARD_FIELD
from dsort.spec.inputs import Source
from dsort.spec.model import JobSpec
from dsort.stop_flag import StopFlag
from dsort.storage.ref import STREAM, BucketRef

PIECE_BYTES: Final = 1 << 20
CHECKED_BYTES: Final = 64 << 20
"""Free space is checked each time this many bytes are written."""
ROOM_BYTES_MIN: Final = 64 << 20
"""The bytes that a spool leaves free on the disk, which other programs use, too."""
AT_ONCE_MAX: Final = 4
LOCK_FILE: Final = "lock"
OUTPUT: Final = "output"


# Input streams are spooled to files in scratch before the job begins: a job reads its inputs at
# many places, and some of them twice. The output stream is one shard, which is written once the job
# is done with it: a job that fails writes nothing at all.
#
# The spool is a directory `dsort-<job>-stream`. The directory is locked as long as its process is
# alive. A process that makes a spool removes the spools of processes that died.
class Streams:
    """The streams of one job. ``inputs``: by name of the input, the directory into which its shards
    are spooled. ``output``: the directory of the shard that goes to standard output, or None."""

    def __init__(self, spec: JobSpec, directory: Path) -> None:
        self._spec = spec
        self._directory = directory
        self._running = Running()
        self.inputs: dict[str, BucketRef] = {}
        for number, source in enumerate(spec.sources):
            if source.bucket.is_stream:
                place = directory / f"input-{number}"
                place.mkdir()
                self.inputs[source.name] = BucketRef("file", str(place))
        self.output: BucketRef | None = None
        if spec.output_bck.is_stream:
            (directory / OUTPUT).mkdir()
            self.output = BucketRef("file", str(directory / OUTPUT))

    def spool(self, stop: StopFlag) -> None:
        """Read all input streams. ``InputError`` if a program fails, ``StorageFullError`` if there
        is no room."""
        try:
            for source in self._spec.sources:
                if source.name in self.inputs:
                    stop.wait_for(lambda source=source: self._spool(source, stop))  # type: ignore[misc]
        finally:
            self._running.end()

    def deliver(self, name: str, stop: StopFlag) -> None:
        """Write the output shard ``name`` to standard output. ``StorageError`` if its reader is
        gone."""
        assert self.output is not None
        with open(Path(self.output.path) / name, "rb") as file:
            stop.wait_for(lambda: _send(file, stop))

    def _spool(self, source: Source, stop: StopFlag) -> None:
        directory = Path(self.inputs[source.name].path)
        extension = self._spec.input_extension
        if source.bucket.scheme == STREAM:
            self._store(sys.stdin.buffer, directory / f"stdin{extension}", "standard input", stop)
            return
        words = json.loads(source.bucket.path)
        listed = listed_names(source, extension)
        names = [f"{Path(words[0]).name}{extension}"] if listed is None else [*listed]
        for name in names:
            try:
                check_object_name(name)
            except ValueError as error:
                raise SpecError([SpecProblem(f"{source.path}input_format", str(error))]) from None
        for parent in {(directory / name).parent for name in names}:
            parent.mkdir(parents=True, exist_ok=True)

        def run(name: str) -> None:
            self._run([word.replace(SHARD_FIELD, name) for word in words], directory / name, stop)

        with ThreadPoolExecutor(AT_ONCE_MAX) as threads:
            for _ in threads.map(run, names):
                pass

    def _run(self, words: list[str], path: Path, stop: StopFlag) -> None:
        """Spool the output of a program."""
        command = self._running.start(words, is_source=True)
        with command.stdout as written:
            self._store(written, path, f"what {command.program} writes", stop)
        why = command.wait()
        self._running.drop(command)
        stop.raise_if_requested()
        if why:
            raise InputError(
                f"the program {command.program}, which was to write {path.name}, {why}",
                hint="its output may be incomplete, so none of it is used",
            )

    def _store(self, stream: IO[bytes], path: Path, what: str, stop: StopFlag) -> None:
        written = checked = 0
        read: Callable[[int], bytes] = getattr(stream, "read1", stream.read)
        try:
            with path.open("wb") as file:
                while piece := read(PIECE_BYTES):
                    stop.raise_if_requested()
                    if written >= checked:
                        checked = written + CHECKED_BYTES
                        _refuse_full(self._directory, what, written)
                    file.write(piece)
                    written += len(piece)
        except OSError as error:
            kind = StorageFullError if error.errno == 28 else StorageError
            raise kind(f"cannot spool {what} to {path}: {error.strerror}") from None


@contextlib.contextmanager
def opened_streams(spec: JobSpec, options: RunOptions, job_id: str) -> Iterator[Streams]:
    """The streams of a job that has some, with a directory that is removed afterwards.
    ``SpecError`` if streams are not available here."""
    if options.fetch:
        raise SpecError("streams are not for specs that come over the network")
    if options.ray_address:
        raise SpecError(
            "streams are spooled to this machine, where other nodes cannot read them",
            hint="leave --ray-address out, or write the stream to a bucket first",
        )
    if any(source.bucket.scheme == STREAM for source in spec.sources) and sys.stdin.isatty():
        raise SpecError("standard input is a terminal, not a shard", hint="tar c ... | dsort ...")
    if spec.output_bck.is_stream and not spec.dry_run and sys.stdout.isatty():
        raise SpecError("standard output is a terminal", hint="dsort start ... > shard.tar")
    base = (options.scratch or Path(tempfile.gettempdir())).absolute()
    _sweep(base)
    directory = base / f"dsort-{job_id}-stream"
    try:
        directory.mkdir(mode=0o700)
        with (directory / LOCK_FILE).open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield Streams(spec, directory)
    except FileNotFoundError:
        raise StorageError(f"there is no scratch directory {base}") from None
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _sweep(base: Path) -> None:
    """Remove the spools of this user's processes that died."""
    for path in base.glob("dsort-*-stream"):
        with contextlib.suppress(OSError):
            if path.is_symlink() or path.stat().st_uid != os.geteuid():
                continue
            with (path / LOCK_FILE).open("r+b") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)


def _refuse_full(directory: Path, what: str, written: int) -> None:
    free = shutil.disk_usage(directory).free
    if free < CHECKED_BYTES + ROOM_BYTES_MIN:
        raise StorageFullError(
            f"{directory.parent} has {format_bytes(free)} free, after {format_bytes(written)} of "
            f"{what}",
            hint="make room, or put scratch on another file system: --scratch",
        )


def _send(file: IO[bytes], stop: StopFlag) -> None:
    sys.stdout.flush()
    descriptor = sys.stdout.fileno()
    try:
        while piece := file.read(PIECE_BYTES):
            rest = memoryview(piece)
            while rest:
                stop.raise_if_requested()
                rest = rest[os.write(descriptor, rest) :]
    except BrokenPipeError:
        raise StorageError("the reader of standard output has closed it") from None
    except OSError as error:
        raise StorageError(f"cannot write to standard output: {error.strerror}") from None
