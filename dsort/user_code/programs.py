"""Runs a program of the user's: on the members of one record as files, or on many records as a tar.

The program is started without a shell, in a session of its own. At the end of its record it is
killed, with its group and with all processes that it started in any session.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import io
import os
import re
import resource
import select
import shutil
import signal
import stat
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from dsort.containers.tar.header import tar_header, tar_padding
from dsort.user_code.frames import (
    NAMES,
    BadResultError,
    Outcome,
    Runner,
    Sample,
    check_extension,
    check_key,
    said_briefly,
)

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
SAID_BYTES = 4096
READ_BYTES = 1 << 16
_PLACE = re.compile(r"\$(?:\$|(IN|OUT|KEY)\b|\{(IN|OUT|KEY)\})")
_LIBC = ctypes.CDLL(None, use_errno=True)


class ProgramError(Exception):
    """A program failed, or could not be run."""


class _Ended(Struct, frozen=True):
    code: int
    said: str
    output: bytes


class _Program:
    """The command to start, and its limits."""

    def __init__(self, program: Mapping[str, Any]) -> None:
        self.command: list[str] = program["command"]
        self._timeout_s: float = program["timeout_s"]
        self._memory_bytes: int = program["memory_bytes"]
        found = shutil.which(self.command[0])
        if found is None:
            raise FileNotFoundError(f"there is no program {self.command[0]}")
        self.path = found
        # Orphans that a program leaves become children of this process, and are ended with the
        # program.
        _LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)

    def run(
        self, command: Sequence[str], directory: str, values: Mapping[str, str], data: bytes | None
    ) -> _Ended:
        """Run the program to its end. ``data`` is sent to its standard input, and its standard
        output is kept; None: neither happens. ``ProgramError`` if it takes too long."""
        process = subprocess.Popen(
            [self.path, *command[1:]],
            cwd=directory,
            env={**os.environ, **values},
            stdin=subprocess.DEVNULL if data is None else subprocess.PIPE,
            stdout=subprocess.DEVNULL if data is None else subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=self._bound,
        )
        watch = _Watch(process, data, self._timeout_s)
        try:
            return watch.wait()
        finally:
            _end(process)

    def digest(self) -> str:
        """The hash of the program's file."""
        with open(self.path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def _bound(self) -> None:
        _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if self._memory_bytes:
            resource.setrlimit(resource.RLIMIT_AS, (self._memory_bytes,) * 2)


class _Watch:
    """Moves the input and output of a program, until it ends or nothing moves for too long."""

    def __init__(
        self, process: subprocess.Popen[bytes], data: bytes | None, timeout_s: float
    ) -> None:
        self._process = process
        self._stdin = process.stdin.fileno() if process.stdin is not None else -1
        self._stderr = process.stderr.fileno() if process.stderr is not None else -1
        self._rest = memoryview(data or b"")
        self._timeout_s = timeout_s
        self._said = b""
        self._output: list[bytes] = []

    def wait(self) -> _Ended:
        process, poll = self._process, select.poll()
        pipes = [pipe for pipe in (process.stdin, process.stdout, process.stderr) if pipe]
        open_pipes = {pipe.fileno(): pipe for pipe in pipes}
        for number in open_pipes:
            os.set_blocking(number, False)
            poll.register(number, select.POLLOUT if number == self._stdin else select.POLLIN)
        ends = os.pidfd_open(process.pid)
        poll.register(ends, select.POLLIN)
        late, has_ended = time.monotonic() + self._timeout_s, False
        try:
            while True:
                ready = dict(poll.poll(max(0, int((late - time.monotonic()) * 1000)) + 1))
                if not ready and time.monotonic() >= late:
                    raise ProgramError(f"it took longer than {self._timeout_s:g} s")
                for number in ready.keys() & open_pipes.keys():
                    if not self._move(number):
                        poll.unregister(number)
                        open_pipes.pop(number).close()
                    elif number != self._stderr:
                        late = time.monotonic() + self._timeout_s
                if ends in ready:
                    has_ended = True
                    poll.unregister(ends)
                if has_ended and not open_pipes.keys() - {self._stdin, self._stderr}:
                    break
        finally:
            os.close(ends)
        if self._stderr in open_pipes:
            self._move(self._stderr)
        said = said_briefly(self._said.decode("utf-8", "replace").strip().rpartition("\n")[2])
        return _Ended(process.wait(), said, b"".join(self._output))

    def _move(self, number: int) -> bool:
        """Send or receive as much as possible now; False: nothing more will be moved."""
        try:
            if number == self._stdin:
                self._rest = self._rest[os.write(number, self._rest[:READ_BYTES]) :]
                return len(self._rest) > 0
            data = os.read(number, READ_BYTES)
        except BlockingIOError:
            return True
        except BrokenPipeError:
            return False  # it reads no more
        if number == self._stderr:
            self._said = (self._said + data)[-SAID_BYTES:]
        else:
            self._output.append(data)
        return len(data) > 0


def _end(process: subprocess.Popen[bytes]) -> None:
    """End all remaining processes of the program: its group, then orphans that became children of
    this process."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None and not pipe.closed:
            with contextlib.suppress(OSError):
                pipe.close()
    own = os.getpid()
    while text := Path(f"/proc/{own}/task/{own}/children").read_text():
        for number in map(int, text.split()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(number, 0)


class _ProgramRunner(Runner):
    """Runs a program of the user's on records."""

    def __init__(self, program: Mapping[str, Any]) -> None:
        self._program = _Program(program)
        self._drop = frozenset(program["drop"])
        self._directory: str = program["directory"]
        self.batch_size = program["batch_size"]

    def description(self) -> dict[str, object]:
        """See :class:`Runner`."""
        return {"source_sha256": self._program.digest()}

    def sources(self) -> dict[str, str]:
        """The hash of the program."""
        return {self._program.command[0]: self._program.digest()}


class FilesRunner(_ProgramRunner):
    """In ``$IN``, each member is a file whose name is its extension; the files in ``$OUT`` join the
    record."""

    def run(self, samples: Sequence[Sample]) -> list[Outcome]:
        """See :class:`Runner`."""
        return [self._one(sample) for sample in samples]

    def _one(self, sample: Sample) -> Outcome:
        with tempfile.TemporaryDirectory(dir=self._directory, ignore_cleanup_errors=True) as place:
            given, made = Path(place) / "in", Path(place) / "out"
            given.mkdir()
            made.mkdir()
            try:
                for extension, data in sample.members.items():
                    if extension in ("", ".", ".."):
                        raise ProgramError(f"its member .{extension} cannot be a file")
                    (given / extension).write_bytes(data)
                values = {"IN": str(given), "OUT": str(made), "KEY": sample.key}
                command = [_filled(each, values) for each in self._program.command]
                _refuse_failure(self._program.run(command, place, values, None), command[0])
                found = _files_in(made)
            except (ProgramError, BadResultError) as error:
                return str(error)
            except OSError as error:
                return said_briefly(f"{type(error).__name__}: {error}")
        kept = {name: data for name, data in sample.members.items() if name not in self._drop}
        members = {**kept, **found}
        return [Sample(sample.key, members)] if members else []


def _filled(text: str, values: Mapping[str, str]) -> str:
    """The argument with the values filled in. ``ProgramError`` if an argument becomes an option
    because of the key of a record, which the maker of the shard has chosen."""
    filled = _PLACE.sub(lambda match: values.get(match[1] or match[2] or "", "$"), text)
    if filled.startswith("-") and not text.startswith("-"):
        raise ProgramError(
            f"its key begins with -, so the program would take {text} for an option; write "
            f"./{text} for a path, or let the program read the variable KEY"
        )
    return filled


def _refuse_failure(ended: _Ended, name: str) -> None:
    if ended.code:
        how = f"ended with exit code {ended.code}"
        if ended.code < 0:
            how = f"was killed by signal {-ended.code}"
        raise ProgramError(f"{name} {how}" + (f": {ended.said}" if ended.said else ""))


def _files_in(directory: Path) -> dict[str, bytes]:
    """The files that a program has made, by name. ``BadResultError`` for entries that are not
    files."""
    found = {}
    for path in sorted(directory.iterdir()):
        check_extension(path.name)
        if not stat.S_ISREG(path.lstat().st_mode):
            raise BadResultError(f"it made {path.name}, which is no file")
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            found[path.name] = file.read()
    return found


class TarRunner(_ProgramRunner):
    """Sends many records as a tar, and receives the new records as a tar. The key of a new record
    shows from which record it was made."""

    def run(self, samples: Sequence[Sample]) -> list[Outcome]:
        """See :class:`Runner`. If a program fails at several records, each half is tried. So only
        records at which the program fails alone have errors."""
        keys = {sample.key for sample in samples}
        error = "several records have one key"
        if len(keys) == len(samples):
            try:
                return self._together(samples)
            except (ProgramError, BadResultError) as problem:
                error = str(problem)
            except OSError as problem:
                error = said_briefly(f"{type(problem).__name__}: {problem}")
        if len(samples) == 1:
            return [error]
        half = len(samples) // 2
        return self.run(samples[:half]) + self.run(samples[half:])

    def _together(self, samples: Sequence[Sample]) -> list[Outcome]:
        command = [_filled(each, {}) for each in self._program.command]
        data = tar_of(samples)
        ended = self._program.run(command, self._directory, {}, data)
        _refuse_failure(ended, command[0])
        found: dict[str, list[Sample]] = {sample.key: [] for sample in samples}
        for sample in read_tar(ended.output):
            found[_owner(sample.key, found)].append(sample)
        for made in found.values():
            for sample in made:
                for name in self._drop & sample.members.keys():
                    del sample.members[name]
        return [[each for each in found[sample.key] if each.members] for sample in samples]


def _owner(key: str, keys: Mapping[str, object]) -> str:
    """The record from which a record with ``key`` was made: it has the same key, or the part of
    ``key`` before a slash or dash. ``BadResultError`` if there is none."""
    at = len(key)
    while at > 0:
        if key[:at] in keys:
            return key[:at]
        at = max(key.rfind("/", 0, at), key.rfind("-", 0, at))
    raise BadResultError(
        f"it made a record {said_briefly(key)}, whose key begins with the key of no input record"
    )


def tar_of(samples: Sequence[Sample]) -> bytes:
    """The records as a tar."""
    pieces = []
    for sample in samples:
        for extension, data in sample.members.items():
            name = f"{sample.key}.{extension}" if extension else sample.key
            pieces += [tar_header(name.encode(*NAMES), len(data)), data, tar_padding(len(data))]
    return b"".join([*pieces, bytes(2 * tarfile.BLOCKSIZE)])


def read_tar(data: bytes) -> list[Sample]:
    """The records in a tar: consecutive members with one key. ``BadResultError``."""
    found: list[Sample] = []
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:", errors="surrogateescape") as archive:
            for member in archive:
                if member.isdir():
                    continue
                file = archive.extractfile(member) if member.isreg() else None
                if file is None:
                    raise BadResultError(f"it made {said_briefly(member.name)}, which is no file")
                content = file.read()
                if len(content) != member.size:
                    raise BadResultError("its tar is cut off")
                _add(found, member.name, content)
    except (tarfile.TarError, EOFError) as error:
        raise BadResultError(f"its output is no tar: {said_briefly(str(error))}") from None
    if not data.endswith(bytes(tarfile.BLOCKSIZE)):
        raise BadResultError("its tar has no end")
    return found


def _add(found: list[Sample], name: str, content: bytes) -> None:
    name = name.removeprefix("./")
    directory, slash, base = name.rpartition("/")
    stem, _, extension = base.partition(".")
    key = directory + slash + stem
    check_key(key)
    check_extension(extension)
    if not found or found[-1].key != key:
        found.append(Sample(key, {}))
    if extension in found[-1].members:
        raise BadResultError(f"it made {said_briefly(name)} twice")
    found[-1].members[extension] = content
