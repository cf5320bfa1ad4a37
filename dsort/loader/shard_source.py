"""Samples of one shard by their numbers, which only grow: from an index, or reading forward.

Which way depends on what is known of the shard. Where its index is known, no more is read than the
records that are asked for, with what is near them. A tar without one is read forward, window by
window; its headers are read on the way, and its index is known at the end. All other shards are
opened as ``dsort.open`` does.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NoReturn

import numpy as np
import xxhash

from dsort.closing import ClosesOnExit
from dsort.containers.base import ForwardScanner
from dsort.containers.registry import codec_of, container_of
from dsort.data.columns import Int64s
from dsort.data.members import MemberKind, MemberTable
from dsort.errors import ChangedInputError, DsortError, ShardEndError
from dsort.loader.decode import Sample
from dsort.loader.shard_file import ShardFile
from dsort.reading.places import ShardPlace
from dsort.reading.record_index import RecordIndex
from dsort.reading.shard import Record, Shard, extension_of

__all__ = ["ShardSource", "sample_of", "samples_in"]

GAP_BYTES_MAX: Final = 128 << 10
"""Bytes between two wanted records of a file that are read with them; of a store, more."""
GAP_BYTES_STORE: Final = 1 << 20
RANGE_BYTES_MAX: Final = 32 << 20
FILE_BYTES_MAX: Final = 4 << 20
"""The same of files, where one read costs nothing, and windows stay in a processor's cache."""
PASSED_RECORD_BYTES: Final = 2 << 20
"""Larger records, on average, are passed over from header to header in a file. Of 100 KB, that took
twice the processor time of reading them all."""
HEADER_BYTES: Final = 4 << 10
FIRST_BYTES: Final = 1 << 20
"""The first window of a shard, so that the first batch need not wait; each is twice the last."""


def sample_of(record: Record, url: str) -> Sample:
    """A record as webdataset has it: content by extension, ``__key__`` and ``__url__``."""
    contents = record.members.items()
    named = {extension_of(name, record.key).lower(): content for name, content in contents}
    return {"__key__": record.key, "__url__": url, **named}


def samples_in(
    index: RecordIndex, rows: Int64s, view: memoryview, base: int, url: str
) -> Iterator[Sample]:
    """The samples of records ``rows`` of ``index``, which grow. ``view``: bytes of the shard from
    byte ``base`` on, with all of theirs. About 1 µs a member, and a copy of its content."""
    extensions: dict[bytes, str] = {}
    for run in np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1):
        if not len(run):
            continue
        own = slice(int(run[0]), int(run[-1]) + 1)
        bounds = index.offsets[own.start : own.stop + 1]
        files = slice(int(bounds[0]), int(bounds[-1]))
        names = index.names.run(files.start, files.stop).tolist()
        begins = index.start[files] - base
        starts, stops = begins.tolist(), (begins + index.size[files]).tolist()
        places = (bounds - files.start).tolist()
        for size, (first, stop) in zip(
            index.key_bytes[own].tolist(), pairwise(places), strict=True
        ):
            sample: Sample = {"__key__": _text(names[first][:size]), "__url__": url}
            for file in range(first, stop):
                raw = names[file][size + 1 :]
                extension = extensions.get(raw)
                if extension is None:
                    extension = extensions[raw] = _text(raw).lower()
                sample[extension] = view[starts[file] : stops[file]].tobytes()
            yield sample


@dataclass(frozen=True, slots=True)
class _Ranges:
    """``rows`` that are read as one range of bytes."""

    rows: Int64s
    low: int
    high: int


def _ranges(
    index: RecordIndex, rows: Int64s, gap_bytes_max: int, bytes_max: int
) -> Iterator[_Ranges]:
    """Ranges of at most ``bytes_max``, or of one record, that between them have ``rows``."""
    low, high = index.low[rows], index.high[rows]
    gaps = low[1:] - high[:-1]
    is_near = ((gaps >= 0) & (gaps <= gap_bytes_max)).tolist()
    ends, begins = high.tolist(), low.tolist()
    first = 0
    for at in range(1, len(rows) + 1):
        if at < len(rows) and is_near[at - 1] and ends[at] - begins[first] <= bytes_max:
            continue
        yield _Ranges(rows[first:at], int(low[first:at].min()), int(high[first:at].max()))
        first = at


class _Room:
    """Memory that ranges are read to, one after the other: fresh memory costs more than a copy."""

    def __init__(self) -> None:
        self._array = np.empty(0, np.uint8)

    def view(self, size_bytes: int) -> memoryview:
        """So many bytes. They are those that the last call gave."""
        if len(self._array) < size_bytes:
            self._array = np.empty(size_bytes, np.uint8)
        return self._array.data[:size_bytes]


class ShardSource(ClosesOnExit):
    """The samples of one shard. ``take`` is called by one thread at a time, in the order of
    tickets."""

    def __init__(
        self,
        place: ShardPlace,
        url: str,
        open_file: Callable[[], ShardFile],
        known: Callable[[ShardFile], RecordIndex | None],
        learned: Callable[[ShardFile, RecordIndex], None],
        *,
        window_bytes: int,
        max_expansion: float,
    ) -> None:
        """``known``: the index of the shard, if there is one. ``learned`` is told of one that was
        made."""
        self.url = url
        self._place = place
        self._open_file, self._known, self._learned = open_file, known, learned
        self._window_bytes = window_bytes
        self._max_expansion = max_expansion
        self._file: ShardFile | None = None
        self._index: RecordIndex | None = None
        self._forward: _ForwardTar | None = None
        self._shard: Shard | None = None
        self._room = _Room()
        self._turn = threading.Condition()
        self._tickets = self._served = 0

    def ticket(self) -> int:
        """A place in the line. Whoever has it calls :meth:`take` once."""
        self._tickets += 1
        return self._tickets - 1

    def take(self, ticket: int, rows: Int64s) -> list[Sample]:
        """The samples of records ``rows``, shape ``(n,)``, which grow from call to call."""
        with self._turn:
            self._turn.wait_for(lambda: self._served == ticket)
        try:
            return list(self._samples(rows))
        finally:
            with self._turn:
                self._served += 1
                self._turn.notify_all()

    def finish(self, ticket: int) -> None:
        """Read a tar that was begun to its end, for its index, and release it: nobody takes more of
        it. What is wrong with it is for those to say who want it."""
        with self._turn:
            self._turn.wait_for(lambda: self._served == ticket)
        with contextlib.suppress(DsortError):
            if self._forward is not None and self._file is not None:
                self._forward.finish()
                if self._forward.index is not None:
                    self._learned(self._file, self._forward.index)
        self.close()

    def close(self) -> None:
        """Release the shard. Closing again is harmless."""
        for each in (self._file, self._shard):
            if each is not None:
                each.close()
        self._file = self._shard = self._forward = self._index = None

    def _samples(self, rows: Int64s) -> Iterator[Sample]:
        if self._file is None and self._shard is None:
            self._open()
        if self._forward is not None and self._index is None:
            try:
                yield from self._forward.samples(rows)
            except _NotForwardError:  # links: all of its headers have to be known
                self._forward = None
                self._shard = self._opened_shard()
                yield from self._of_shard(self._shard, rows)
                return
            if self._forward.index is not None:
                self._index, self._forward = self._forward.index, None
                assert self._file is not None
                self._learned(self._file, self._index)
        elif self._index is not None:
            yield from self._of_index(self._index, rows)
        else:
            assert self._shard is not None
            yield from self._of_shard(self._shard, rows)

    def _open(self) -> None:
        container = container_of(self._place.name)
        self._file = self._open_file()
        self._index = self._known(self._file)
        if self._index is not None:
            self._check_count(len(self._index))
            return
        scanner = container.scanner(self._place.name, self._file.info.size_bytes)
        if codec_of(self._place.name) is None and isinstance(scanner, ForwardScanner):
            self._forward = _ForwardTar(
                self._place, self._file, scanner, self._window_bytes, self.url
            )
        else:
            self._shard = self._opened_shard()

    def _opened_shard(self) -> Shard:
        if self._file is not None:
            self._file.close()
            self._file = None
        shard = Shard(self._place, max_expansion=self._max_expansion)
        self._shard = shard
        self._check_count(len(shard))
        return shard

    def _of_index(self, index: RecordIndex, rows: Int64s) -> Iterator[Sample]:
        assert self._file is not None
        self._check_rows(rows, len(index))
        is_file = self._file.is_file
        gap, most = (
            (GAP_BYTES_MAX, FILE_BYTES_MAX) if is_file else (GAP_BYTES_STORE, RANGE_BYTES_MAX)
        )
        for each in _ranges(index, rows, gap, most):
            view = self._room.view(each.high - each.low)
            self._file.read_into(view, each.low)
            yield from samples_in(index, each.rows, view, each.low, self.url)

    def _of_shard(self, shard: Shard, rows: Int64s) -> Iterator[Sample]:
        self._check_rows(rows, len(shard))
        for row in rows.tolist():
            yield sample_of(shard[row], self.url)

    def _check_rows(self, rows: Int64s, count: int) -> None:
        if len(rows) and int(rows[-1]) >= count:
            wrong_count(self._place, count)

    def _check_count(self, count: int) -> None:
        if self._place.records is not None and self._place.records != count:
            wrong_count(self._place, count)


def wrong_count(place: ShardPlace, found: int) -> NoReturn:
    """``ChangedInputError``: the shard has not as many records as is known of it."""
    wanted = (
        "more were counted" if place.records is None else f"its manifest says {place.records:,}"
    )
    raise ChangedInputError(
        f"shard {place.name} in {place.bucket.uri} has {found:,} records, {wanted}",
        hint="fetch or make it again; `dsort verify` compares all of a result",
    )


class _NotForwardError(Exception):
    """The shard has members that can only be told once all of it is known."""


class _ForwardTar:
    """Reads a tar from its beginning to its end, and forms records on the way."""

    def __init__(
        self,
        place: ShardPlace,
        file: ShardFile,
        scanner: ForwardScanner,
        window_bytes: int,
        url: str,
    ) -> None:
        self.index: RecordIndex | None = None  # of all of it, once it is known
        self._place, self._file, self._scanner, self._url = place, file, scanner, url
        self._room = _Room()
        self._window_bytes = min(window_bytes, FILE_BYTES_MAX) if file.is_file else window_bytes
        self._step_bytes = min(FIRST_BYTES, window_bytes)
        self._size_bytes = file.info.size_bytes
        self._members = 0  # that were taken from the scanner
        self._pending: MemberTable | None = None  # of the record that may go on
        self._parts: list[RecordIndex] = []
        self._records = 0
        self._last: tuple[RecordIndex, memoryview, int, int] | None = None
        self._hash: xxhash.xxh3_64 | None = xxhash.xxh3_64() if place.xxh3 else None
        self._hashed = 0

    def samples(self, rows: Int64s) -> Iterator[Sample]:
        """The samples of ``rows``, none of which lies before those of an earlier call."""
        at = 0
        while True:
            if self._last is not None:
                part, view, base, first = self._last
                stop = int(np.searchsorted(rows, first + len(part)))
                if stop > at:
                    yield from samples_in(part, rows[at:stop] - first, view, base, self._url)
                    at = stop
            if at == len(rows) and not self._is_at_end(rows):
                return
            if self._scanner.done:
                if at < len(rows):
                    wrong_count(self._place, self._records)
                if self.index is None:
                    self._finish()
                return
            self._read_window(int(rows[at]) if at < len(rows) else 0)

    def finish(self) -> None:
        """Read on to the end, if little is left."""
        if self._size_bytes - self._scanner.next_offset > RANGE_BYTES_MAX:
            return
        while not self._scanner.done:
            self._read_window(0)
        if self.index is None:
            self._finish()

    def _is_at_end(self, rows: Int64s) -> bool:
        """Whether the last record was asked for: then the rest is read, to know it is whole."""
        wanted = self._place.records
        return wanted is not None and len(rows) > 0 and int(rows[-1]) == wanted - 1

    def _read_window(self, ahead: int) -> None:
        """Read on. ``ahead``: the next record that is wanted."""
        base, begin = self._begin(), self._scanner.next_offset
        is_passed = self._file.is_file and self._records > 0 and ahead > self._records + 1
        step = self._step_bytes
        if is_passed and base // self._records > PASSED_RECORD_BYTES:
            step = HEADER_BYTES  # nothing before that record is wanted
        else:
            self._step_bytes = min(2 * step, self._window_bytes)
        step = max(step, self._scanner.window_bytes_min)
        size = min(begin - base + step, self._size_bytes - base)
        self._last = None
        view = self._room.view(size)
        self._file.read_into(view, base)
        self._note(view, base)
        if self._scanner.next_offset < base + size:
            self._scanner.feed(view[begin - base :], begin)
        self._form(view, base)

    def _begin(self) -> int:
        """Where the next window begins: with the record that may go on."""
        if self._pending is None or not len(self._pending):
            return min(self._scanner.next_offset, self._size_bytes)
        return int(self._pending.range_start.min())

    def _form(self, view: memoryview, base: int) -> None:
        """Make records of the members that were found, but for the last, which may go on, and those
        whose payload goes on behind the window."""
        new = self._scanner.found(self._members)
        self._members += len(new)
        if bool((new.kind == MemberKind.HARDLINK).any()):
            raise _NotForwardError
        table = new if self._pending is None else self._pending.followed_by(new, 0)
        whole, _ = RecordIndex.of(table)
        if not len(whole):  # nothing but directories and the like
            self._pending = None
            return
        end = base + len(view)
        # Records are whole if their last byte was read, and something else follows.
        reach = np.searchsorted(np.maximum.accumulate(whole.high), end, "right")
        count = int(reach) if self._scanner.done else min(int(reach), len(whole) - 1)
        if count <= 0:
            self._pending = table
            return
        files = int(whole.offsets[count])
        part = RecordIndex(
            whole.offsets[: count + 1],
            whole.key_bytes[:count],
            whole.names.run(0, files),
            whole.start[:files],
            whole.size[:files],
        )
        rows = np.flatnonzero(table.kind == MemberKind.FILE)
        rest = np.arange(int(rows[files]) if files < len(rows) else len(table), len(table))
        self._pending = table.taking(rest)
        self._parts.append(part)
        self._last = part, view, base, self._records
        self._records += count

    def _note(self, view: memoryview, base: int) -> None:
        """Hash what was read, as long as nothing is passed over."""
        if self._hash is None:
            return
        end = base + len(view)
        if base > self._hashed:
            self._hash = None
        elif end > self._hashed:
            self._hash.update(view[self._hashed - base :])
            self._hashed = end

    def _finish(self) -> None:
        notes = self._scanner.finish().notes
        if notes.shortfall:
            raise ShardEndError(
                f"shard {self._place.name} may not be whole: {notes.shortfall}",
                hint="fetch or make it again",
            )
        found, wanted = self._hash, self._place.xxh3
        if found is not None and self._hashed == self._size_bytes and found.hexdigest() != wanted:
            raise ChangedInputError(
                f"shard {self._place.name} in {self._place.bucket.uri} has other bytes than its "
                f"manifest says: XXH3 {found.hexdigest()}, not {wanted}",
                hint="fetch or make it again; `dsort verify` compares all of a result",
            )
        if self._place.records is not None and self._place.records != self._records:
            wrong_count(self._place, self._records)
        self.index = RecordIndex.joined(self._parts)


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
