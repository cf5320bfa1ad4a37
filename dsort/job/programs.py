"""Programs that a recipe names, whose output becomes members. They run only on this machine, and
only if the spec allows it."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

from dsort.errors import InputError, SpecError
from dsort.job.commands import Command
from dsort.options import RunOptions
from dsort.sizes import format_bytes
from dsort.spec.model import JobSpec

BYTES_MAX: Final = 64 << 20
"""The most that all programs of a recipe may write: it is held in memory, and every worker gets
it."""
READ_BYTES: Final = 1 << 18
AT_ONCE_MAX: Final = 4


class Programs:
    """Runs programs, and ends those that still run when the job stops."""

    def __init__(self) -> None:
        self._running: set[Command] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._left = BYTES_MAX

    def written_by(self, lines: Sequence[tuple[str, str]]) -> list[bytes]:
        """The output of each program. ``lines``: of each, its place for errors and its command,
        which is split into words as by a shell; there is no shell. ``InputError`` at the first that
        fails."""
        with ThreadPoolExecutor(AT_ONCE_MAX) as threads:
            try:
                return list(threads.map(lambda line: self._run(*line), lines))
            except BaseException:
                self.end()  # the output of the others is not needed any more
                raise

    def end(self) -> None:
        """End the programs that still run, with all processes that they have started."""
        with self._lock:
            self._closed = True
            running = list(self._running)
        for command in running:
            command.end()

    def _run(self, where: str, text: str) -> bytes:
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise InputError(f"{where}: {text!r:.80} is no command: {error}") from None
        if not words or not words[0]:
            raise InputError(f"{where} names no program", hint="000001.jpg pipe:curl -sf URL")
        try:
            command = self._started(words)
        except InputError as error:
            raise InputError(f"{where}: {error.message}") from None
        try:
            data = self._read(command, where)
            why = command.wait()
        finally:
            command.end()
            self._running.discard(command)
        if why:
            raise InputError(
                f"{where}: the program {command.program} {why}",
                hint="what it wrote may not be whole, so none of it is used",
            )
        return data

    def _started(self, words: list[str]) -> Command:
        with self._lock:
            if self._closed:
                raise InputError(f"the program {words[0]} was not begun: another one failed")
            command = Command(words, is_source=True)
            self._running.add(command)
        return command

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
                        hint="write it to files, and name these",
                    )
                pieces.append(piece)
        return b"".join(pieces)


@contextmanager
def opened_programs(spec: JobSpec, options: RunOptions) -> Iterator[Programs | None]:
    """The runner of the programs that a recipe names; None if the spec does not allow any.
    ``SpecError`` for specs from the network, which run nothing here."""
    if spec.ingest is None or not spec.ingest.pipes:
        yield None
        return
    if options.fetch is not None:
        raise SpecError("ingest.pipes is not for specs that come over the network")
    programs = Programs()
    try:
        yield programs
    finally:
        programs.end()
