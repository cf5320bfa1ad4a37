"""Programs that a recipe names: what they write becomes members. Only on this machine, and only
where the spec says that it may be."""

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
"""So much all programs of a recipe may write: it is held in memory, and every worker gets it."""
READ_BYTES: Final = 1 << 18
AT_ONCE_MAX: Final = 4


class Programs:
    """Runs programs, and ends those that still run when somebody stops."""

    def __init__(self) -> None:
        self._running: set[Command] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._left = BYTES_MAX

    def written_by(self, lines: Sequence[tuple[str, str]]) -> list[bytes]:
        """What the programs write: of each line, where it is and the words of a command, as a shell
        would part them; there is no shell. ``InputError`` at the first that fails."""
        with ThreadPoolExecutor(AT_ONCE_MAX) as threads:
            try:
                return list(threads.map(lambda line: self._run(*line), lines))
            except BaseException:
                self.end()  # of the others nothing is wanted any more
                raise

    def end(self) -> None:
        """End what still runs, with all that it has started."""
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
    """What runs the programs that a recipe names; None if the spec lets none be run. ``SpecError``
    for specs of others: they run nothing here."""
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
