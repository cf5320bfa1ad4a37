"""Several processes of user code for one step: frames are sent to them, and results are returned in
the order of the frames.

The page of a process shows the record during which it ended. That record gets a second try in a
process of its own, because records before it may have leaked memory.
"""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct, field
from msgspec.structs import replace
from typing_extensions import Buffer

from dsort.errors import TransformError
from dsort.log_lines import logger_of
from dsort.user_code.frames import Results
from dsort.user_code.process import MEMORIES, Begun, CodeProcess, Memories

AHEAD = 4
"""While the pool waits for one frame, each process may have completed this many later frames."""
BEGIN_S = 600.0
LISTEN_S = 1.0
DEATHS_MAX = 3

log = logger_of("user_code")


class Frame(Protocol):
    """Some records of a shard."""

    def __len__(self) -> int: ...

    def message(
        self, number: int, start: int, stop: int, memories: Memories, *, hands_back: bool = False
    ) -> Buffer:
        """The records from ``start`` to ``stop`` as a frame (``frames``) with that number, with
        their payload in one of ``memories``. ``hands_back``: the records will be returned
        unchanged."""


class Done(Struct, frozen=True):
    """The results of the records of a frame from ``start`` on. ``sent_from``: the first record of
    the message; member numbers in ``results`` count from there."""

    frame: Frame
    start: int
    results: Results
    sent_from: int = 0


class _Piece(Struct):
    """Records of a frame that one process has, or will receive. ``done``: the first record without
    a result."""

    frame: Frame
    frame_number: int
    start: int
    stop: int
    number: int = 0
    done: int = 0
    hands_back: bool = False
    tries: int = 0
    alone: bool = False
    failed: str = ""


class _Member(Struct, eq=False):
    process: CodeProcess
    started_s: float
    is_used: bool = False
    pieces: deque[_Piece] = field(default_factory=deque)


class CodePool:
    """At most ``count`` processes that run ``program``. ``timeout_s``: the longest time of each
    call of the user's code. ``keeps``: a record that fails is returned unchanged. ``what``: the
    step, for messages."""

    def __init__(
        self,
        program: Mapping[str, Any],
        *,
        what: str,
        count: int,
        timeout_s: float,
        keeps: bool,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._program = {"describe": False, **program, "keeps": keeps}
        self._environment = environment or {}
        self._what = what
        self._count = count
        self._timeout_s = timeout_s
        self._keeps = keeps
        self._members: list[_Member] = []
        self._numbers = 0
        self._deaths = 0

    def describe(self) -> Mapping[str, Any]:
        """The description of the user's code, once it is loaded. ``TransformError``."""
        self._program["describe"] = True
        member = self._start()
        while True:
            for _, message in self._wait([member]):
                self._take(_Work(iter(())), member, message)
                if isinstance(message, Begun):
                    return message.description

    def run(self, frames: Iterable[Frame]) -> Generator[Done]:
        """The results of all records of ``frames``, in their order. ``TransformError`` if the
        user's code cannot be loaded. The generator must be exhausted or closed."""
        work = _Work(iter(frames))
        try:
            while True:
                self._feed(work)
                yield from work.in_order()
                busy = [member for member in self._members if member.pieces]
                if not busy:
                    if work.is_over:
                        return
                    continue
                for member, message in self._wait(busy):
                    self._take(work, member, message)
        finally:
            # All processes are ended: answers to old pieces could be taken for answers to new ones.
            if any(member.pieces for member in self._members):
                self.close()  # they have work whose results are not needed

    def close(self) -> None:
        """End all processes."""
        while self._members:
            member = self._members.pop()
            if member.pieces:
                member.process.end()
            else:
                member.process.close()

    # -- sending frames --------------------------------------------------------------------------

    def _feed(self, work: _Work) -> None:
        limit = AHEAD * self._count
        while True:
            member = min(self._members, key=lambda each: len(each.pieces), default=None)
            if member is None or (member.pieces and len(self._members) < self._count):
                if not work.has_more(limit):
                    return
                member = self._start()
            if len(member.pieces) >= MEMORIES or any(each.alone for each in member.pieces):
                return
            if work.next_is_alone:
                if member.pieces:
                    return
                if member.is_used:  # other records may have left it with little memory
                    self._members.remove(member)
                    member.process.close()
                    continue
            piece = work.next(limit)
            if piece is None:
                return
            self._numbers += 1
            member.is_used = True
            piece.number, piece.done = self._numbers, piece.start
            member.pieces.append(piece)
            member.process.send(
                piece.frame.message(
                    piece.number,
                    piece.start,
                    piece.stop,
                    member.process.memories,
                    hands_back=piece.hands_back,
                )
            )
            member.process.write()

    def _start(self) -> _Member:
        try:
            member = _Member(CodeProcess(self._program, self._environment), time.monotonic())
        except OSError as error:
            raise TransformError(f"{self._what}: no process can be started: {error}") from error
        self._members.append(member)
        log.debug("%s: process %d of %d is started", self._what, len(self._members), self._count)
        return member

    # -- receiving results -----------------------------------------------------------------------

    def _wait(self, members: Sequence[_Member]) -> list[tuple[_Member, Begun | Results | str]]:
        """The next messages of ``members``; a text is the reason why a process ended."""
        poll = select.poll()
        by_descriptor: dict[int, _Member] = {}
        for member in members:
            sink, source, words = member.process.descriptors
            if member.process.has_to_send:
                poll.register(sink, select.POLLOUT)
            poll.register(source, select.POLLIN)
            poll.register(words, select.POLLIN)
            by_descriptor |= {sink: member, source: member, words: member}
        ready = poll.poll(int(self._patience_s(members) * 1000) + 1)
        found: list[tuple[_Member, Begun | Results | str]] = []
        for descriptor, _ in ready:
            member = by_descriptor[descriptor]
            sink, source, words = member.process.descriptors
            if descriptor == sink:
                member.process.write()
            elif descriptor == source:
                try:
                    found += [(member, message) for message in member.process.read()]
                except ValueError:
                    member.process.is_over = True  # its answers are not valid
            else:
                member.process.listen()
        for member in members:
            if member.process.is_over:
                found.append((member, ""))
            elif self._is_late(member):
                found.append((member, "timeout"))
        return found

    def _patience_s(self, members: Sequence[_Member]) -> float:
        """The time in which no call can time out, at most ``LISTEN_S``."""
        now, left = time.monotonic(), LISTEN_S
        for member in members:
            since = member.process.place.since_s
            if since:
                left = min(left, since + self._timeout_s - now)
        return max(left, 0.0)

    def _is_late(self, member: _Member) -> bool:
        if not member.process.has_begun:
            return time.monotonic() - member.started_s > max(BEGIN_S, self._timeout_s)
        place = member.process.place
        # The page is writable for user code, so a place in it may be of no frame.
        is_at_ours = any(piece.number == place.frame for piece in member.pieces)
        late = place.since_s > 0 and time.monotonic() - place.since_s > self._timeout_s
        return late and is_at_ours

    def _take(self, work: _Work, member: _Member, message: Begun | Results | str) -> None:
        if isinstance(message, Begun):
            if message.error:
                raise TransformError(f"{self._what} cannot be loaded: {message.error}")
            return
        if isinstance(message, str):
            if member in self._members:
                self._lose(work, member, message)
            return
        piece = member.pieces[0]
        self._deaths = 0
        if piece.failed:
            message = message._replace(errors={0: piece.failed})
        work.take(piece, piece.done, message)
        piece.done += len(message.counts)
        if piece.done == piece.stop:
            member.pieces.popleft()

    def _lose(self, work: _Work, member: _Member, reason: str) -> None:
        """Give the records of a process that has ended, or has to end, to other processes, except
        the record at which it ended."""
        place = member.process.place
        how = member.process.end()
        self._members.remove(member)
        log.debug("%s: %s (%s)", self._what, how, reason or "by itself")
        if not member.process.has_begun:
            text = "did not begin in time" if reason else how
            raise TransformError(f"{self._what} cannot be loaded: {text}")
        if reason:
            how = f"it took longer than {self._timeout_s:g} s"
        again: list[_Piece] = []
        was_at_ours = False
        for piece in member.pieces:
            at = piece.start + place.record
            if piece.number != place.frame or not place.since_s or at < piece.done:
                again += _rest(piece, piece.done, piece.stop)
                continue
            was_at_ours = True
            size = min(int(self._program.get("batch_size") or 1), piece.stop - at)
            again += _rest(piece, piece.done, at)
            again += self._culprits(work, piece, at, size, how, is_late=bool(reason))
            again += _rest(piece, at + size, piece.stop)
        if not was_at_ours:
            self._deaths += 1
            if self._deaths > DEATHS_MAX:
                raise TransformError(f"{self._what}: {how}, between two records, several times")
        work.again(again)

    def _culprits(
        self, work: _Work, piece: _Piece, at: int, size: int, how: str, *, is_late: bool
    ) -> list[_Piece]:
        """The pieces for records ``at`` to ``at + size``, at which a process ended. Several records
        are tried one by one; a single record is tried once more, and not again."""
        if size > 1:
            return [
                replace(piece, start=row, stop=row + 1, alone=True) for row in range(at, at + size)
            ]
        if not is_late and piece.tries == 0:
            return [replace(piece, start=at, stop=at + 1, alone=True, tries=1)]
        if self._keeps:
            return [replace(piece, start=at, stop=at + 1, hands_back=True, failed=how)]
        work.take(piece, at, Results((0,), (), (), {0: how}, b""))
        return []


def _rest(piece: _Piece, start: int, stop: int) -> list[_Piece]:
    return [replace(piece, start=start, stop=stop)] if start < stop else []


class _Work:
    """The frames of one run that are not done yet, and results that wait for their turn."""

    def __init__(self, frames: Iterator[Frame]) -> None:
        self._frames = frames
        self._again: deque[_Piece] = deque()
        self._next: _Piece | None = None
        self._ended = False
        self._numbers = 0
        self._lengths: dict[int, int] = {}
        self._turn = (0, 0)  # the next frame and the next record in it
        self._waiting: dict[tuple[int, int], Done] = {}

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do or to return."""
        return not self.has_more(0) and not self._waiting

    @property
    def next_is_alone(self) -> bool:
        """Whether the next piece gets a process of its own."""
        return bool(self._again) and self._again[0].alone

    def has_more(self, ahead: int) -> bool:
        """Whether there is a piece to do now. ``ahead``: the maximum number of frames ahead; 0: no
        limit."""
        if self._again or self._next is not None:
            return True
        if self._ended or (ahead and self._numbers - self._turn[0] >= ahead):
            return False
        frame = next(self._frames, None)
        if frame is None:
            self._ended = True
            return False
        self._next = _Piece(frame, self._numbers, 0, len(frame))
        self._lengths[self._numbers] = len(frame)
        self._numbers += 1
        return True

    def next(self, ahead: int) -> _Piece | None:
        """The next piece to do."""
        if not self.has_more(ahead):
            return None
        if self._again:
            return self._again.popleft()
        piece, self._next = self._next, None
        return piece

    def again(self, pieces: Iterable[_Piece]) -> None:
        """Do ``pieces`` again, before all others."""
        # `extendleft` turns the order round.
        self._again.extendleft(reversed(list(pieces)))

    def take(self, piece: _Piece, start: int, results: Results) -> None:
        """Take the results of the records of ``piece`` from ``start`` on."""
        self._waiting[piece.frame_number, start] = Done(piece.frame, start, results, piece.start)

    def in_order(self) -> Iterator[Done]:
        """Results whose turn it is."""
        while (done := self._waiting.pop(self._turn, None)) is not None:
            number, start = self._turn
            end = start + len(done.results.counts)
            if end == self._lengths[number]:
                del self._lengths[number]
                self._turn = (number + 1, 0)
            else:
                self._turn = (number, end)
            yield done
