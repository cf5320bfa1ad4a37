"""Encodes the bytes of output shards: in pieces of a fixed size, on threads, in order.

The worker fills one piece while others are encoded. The codec libraries release the interpreter
lock meanwhile, so that gathering continues.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Protocol, TypeVar

from dsort.containers.codecs.base import Codec, EncodedPiece, PieceEncoder
from dsort.storage.process_limits import is_no_thread

T = TypeVar("T")
THREADS = 2
PIECES_MAX = 3
"""The most pieces that wait to be encoded or written; then gathering waits, too."""
ENCODING_BYTES = 16 << 20
"""The memory of a worker for pieces, for encoded pieces, and for the tables of encoders."""


class Encoder(Protocol):
    """Makes the bytes of one file from the bytes of one output shard."""

    def feed(self, slices: Sequence[memoryview]) -> Iterable[Sequence[memoryview]]:
        """Add the next bytes of the shard; yield the next bytes of the file, some at a time."""

    def finish(self) -> Iterable[Sequence[memoryview]]:
        """End the shard: yield the rest of the file."""

    def abandon(self) -> None:
        """Discard what waits."""


class NoEncoder:
    """Leaves the bytes of output shards as they are. One object serves all shards of an output, in
    place of ``EncoderThreads``."""

    def encoder(self) -> Encoder:
        """Return the encoder of the next shard."""
        return self

    def feed(self, slices: Sequence[memoryview]) -> Iterable[Sequence[memoryview]]:
        """See :class:`Encoder`."""
        return (slices,)

    def finish(self) -> Iterable[Sequence[memoryview]]:
        """See :class:`Encoder`."""
        return ()

    def abandon(self) -> None:
        """See :class:`Encoder`."""

    def close(self) -> None:
        """Do nothing: there are no threads."""


class Threads:
    """Threads that do work for a worker; if none can be started, the worker does it itself."""

    def __init__(self, count: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=name)
        self._is_alone = False

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Do ``work`` on a thread; in the calling thread, if no thread can be started."""
        if not self._is_alone:
            try:
                return self._pool.submit(work)
            except RuntimeError as error:
                if not is_no_thread(error):
                    raise
                # Threads that did start, if any, do the work that they were given.
                self._is_alone = True
                self._pool.shutdown(wait=True)
        future: Future[T] = Future()
        future.set_result(work())
        return future

    def close(self) -> None:
        """End the threads, once all work is done."""
        self._pool.shutdown(wait=True)


class EncoderThreads:
    """The threads of one worker, which encode one shard after the other."""

    def __init__(self, codec: Codec, level: int) -> None:
        self._codec = codec
        self._level = level
        self._threads = Threads(THREADS, "encoder")

    def encoder(self) -> Encoder:
        """Return the encoder of the next shard."""
        return ShardEncoder(self._codec.encoder(self._level), self._threads)

    def close(self) -> None:
        """End the threads."""
        self._threads.close()


class ShardEncoder:
    """Encodes one output shard."""

    def __init__(self, encoder: PieceEncoder, threads: Threads) -> None:
        self._encoder = encoder
        self._threads = threads
        self._piece = bytearray(encoder.piece_bytes)
        self._filled = 0
        self._pieces = 0
        self._waiting: deque[tuple[bytearray, Future[EncodedPiece]]] = deque()
        self._spare: list[bytearray] = []

    def feed(self, slices: Sequence[memoryview]) -> Iterator[Sequence[memoryview]]:
        """See :class:`Encoder`."""
        size, at = len(self._piece), self._filled
        for piece in slices:
            end = at + len(piece)
            if end < size:
                self._piece[at:end] = piece
                at = end
                continue
            rest = memoryview(piece)
            while len(rest) >= size - at:
                self._piece[at:size] = rest[: size - at]
                rest, at = rest[size - at :], 0
                yield from self._hand_over(self._piece)
            self._piece[: len(rest)] = rest
            at = len(rest)
        self._filled = at

    def finish(self) -> Iterator[Sequence[memoryview]]:
        """See :class:`Encoder`."""
        # An empty shard has one empty piece, so that its file is valid.
        if self._filled or not self._pieces:
            yield from self._hand_over(self._piece[: self._filled])
        yield from self._written(0)
        yield [memoryview(self._encoder.end())]

    def abandon(self) -> None:
        """See :class:`Encoder`."""
        for _, future in self._waiting:
            future.cancel()

    def _hand_over(self, piece: bytearray) -> Iterator[Sequence[memoryview]]:
        if not self._pieces:
            yield [memoryview(self._encoder.begin())]
        self._pieces += 1
        self._waiting.append((piece, self._threads.submit(partial(self._encoder.encode, piece))))
        yield from self._written(PIECES_MAX - 1)
        self._piece = self._spare.pop() if self._spare else bytearray(self._encoder.piece_bytes)

    def _written(self, waiting_max: int) -> Iterator[Sequence[memoryview]]:
        while len(self._waiting) > waiting_max:
            piece, future = self._waiting.popleft()
            encoded = future.result()
            self._encoder.add(piece, encoded)
            # The last piece of a shard may be shorter, and cannot be filled again.
            if len(piece) == self._encoder.piece_bytes:
                self._spare.append(piece)
            yield [memoryview(encoded.data)]


def encoded_pieces(codec: Codec, level: int, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the file to which ``pieces`` are encoded, with the bytes that a job would write."""
    threads = EncoderThreads(codec, level)
    try:
        encoder = threads.encoder()
        for piece in pieces:
            for encoded in encoder.feed([memoryview(piece)]):
                yield b"".join(encoded)
        for encoded in encoder.finish():
            yield b"".join(encoded)
    finally:
        threads.close()
