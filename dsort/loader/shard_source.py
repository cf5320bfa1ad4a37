"""The samples of one shard, by ascending numbers.

If the index of the shard is known, only the requested records are read, with bytes between them. A
tar without an index is read forward, window by window; its headers are read on the way, and its
index is complete at the end. All other shards are opened as by ``dsort.open``.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Final

from msgspec import Struct

from dsort.closing import ClosesOnExit
from dsort.containers.registry import codec_of, container_of
from dsort.containers.tar.container import Tar
from dsort.data.columns import Int64s
from dsort.errors import DsortError
from dsort.loader.decode import Sample
from dsort.loader.forward_tar import (
    FILE_BYTES_MAX,
    RANGE_BYTES_MAX,
    ForwardTar,
    NotForwardError,
    Room,
)
from dsort.loader.samples import are_large, bytes_of, copied_from, sample_of, samples_of
from dsort.loader.shard_file import DirectFile, ShardFile
from dsort.reading.places import ShardPlace
from dsort.reading.record_index import RecordIndex
from dsort.reading.shard import Shard
from dsort.reading.view import ViewObject

__all__ = ["ShardSource"]

GAP_BYTES_MAX: Final = 128 << 10
"""Up to this many bytes between two requested records of a local file are read with the records.
The limit for stores is larger."""
GAP_BYTES_STORE: Final = 1 << 20
DECODED_BYTES_MAX: Final = 1 << 20
"""The approximate size of a list of samples of a shard that is decoded; at least one sample."""


class _Ranges(Struct, frozen=True):
    """Records ``rows`` that are read as one range of bytes, from ``low`` up to ``high``."""

    rows: Int64s
    low: int
    high: int


def _ranges(
    index: RecordIndex, rows: Int64s, gap_bytes_max: int, bytes_max: int
) -> Iterator[_Ranges]:
    """Ranges of at most ``bytes_max`` bytes, or of one record, which together cover ``rows``."""
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


class ShardSource(ClosesOnExit):
    """The samples of one shard. Threads take them one at a time, in the order of their tickets. But
    large members with known places are read by several threads at once, in any order."""

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
        is_forward: bool = True,
    ) -> None:
        """``known``: returns the kept index of the shard, if there is one. ``learned``: called with
        an index that was made. ``is_forward``: rows ascend from call to call, too."""
        self._is_forward = is_forward
        self.url = url
        self._place = place
        self._open_file, self._known, self._learned = open_file, known, learned
        self._window_bytes = window_bytes
        self._max_expansion = max_expansion
        self._file: ShardFile | None = None
        self._direct: DirectFile | ViewObject | None = None
        self._index: RecordIndex | None = None
        self._forward: ForwardTar | None = None
        self._shard: Shard | None = None
        self._room = Room()
        self._turn = threading.Condition()
        self._tickets = self._served = 0  # tickets before ``_served`` have ended
        self._ended: set[int] = set()

    def ticket(self) -> int:
        """A place in the queue, for one call of :meth:`take`. :meth:`leave` ends it."""
        self._tickets += 1
        return self._tickets - 1

    def take(self, ticket: int, rows: Int64s) -> Iterator[list[Sample]]:
        """The samples of records ``rows``, shape ``(n,)``, in one list for each read. The numbers
        ascend; if the source is forward, also from call to call."""
        with self._turn:
            self._turn.wait_for(lambda: self._served == ticket or self._has_no_order(rows))
        yield from self._samples(rows)

    def leave(self, ticket: int) -> None:
        """End ``ticket``, so that the next one in the queue can take samples."""
        with self._turn:
            self._ended.add(ticket)
            while self._served in self._ended:
                self._ended.remove(self._served)
                self._served += 1
            self._turn.notify_all()

    def _has_no_order(self, rows: Int64s) -> bool:
        """Whether records ``rows`` can be read at the same time as others. Then each member is read
        by a call of its own, at its offset in the index."""
        index = self._index
        if index is not None and not self._is_forward:
            return True
        # Numbers that the index lacks are refused later, in their turn.
        if index is None or self._direct is None or not len(rows) or int(rows[-1]) >= len(index):
            return False
        return are_large(index, rows)

    def finish(self, ticket: int) -> None:
        """Read a partly read tar to its end, for its index, and release it. No more samples are
        taken after that. Errors are ignored: a later read of the shard reports them."""
        with self._turn:
            self._turn.wait_for(lambda: self._served == ticket)
        with contextlib.suppress(DsortError, NotForwardError):
            if self._forward is not None and self._file is not None:
                self._forward.finish()
                if self._forward.index is not None:
                    self._learned(self._file, self._forward.index)
        self.close()

    def close(self) -> None:
        """Release the shard. Closing again has no effect."""
        for each in (self._file, self._direct, self._shard):
            if each is not None:
                each.close()
        self._file = self._direct = self._shard = self._forward = self._index = None

    def _samples(self, rows: Int64s) -> Iterator[list[Sample]]:
        if self._file is None and self._shard is None:
            self._open()
            with self._turn:  # with an index, waiting threads may be able to read at once
                self._turn.notify_all()
        if self._forward is not None and self._index is None:
            done = 0
            try:
                for some in self._forward.samples(rows):
                    done += len(some)
                    yield some
            except NotForwardError:  # for links, all headers of the shard have to be read first
                self._forward = None
                self._shard = self._opened_shard()
                yield from self._of_shard(self._shard, rows[done:])
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
        self._direct = self._file.direct()
        self._index = self._known(self._file)
        if self._index is not None:
            self._place.check_count(len(self._index))
            return
        is_plain = codec_of(self._place.name) is None and isinstance(container, Tar)
        if self._is_forward and is_plain:
            self._forward = ForwardTar(
                self._place, self._file, self._window_bytes, self.url, self._direct
            )
        else:
            self._shard = self._opened_shard()

    def _opened_shard(self) -> Shard:
        if self._file is not None:
            self._file.close()
            self._file = None
        shard = Shard(self._place, max_expansion=self._max_expansion)
        self._shard = shard
        return shard

    def _of_index(self, index: RecordIndex, rows: Int64s) -> Iterator[list[Sample]]:
        assert self._file is not None
        self._check_rows(rows, len(index))
        direct = self._direct
        if direct is not None and are_large(index, rows):
            for each in _ranges(index, rows, GAP_BYTES_MAX, RANGE_BYTES_MAX):
                direct.will_need(each.low, each.high - each.low)
                yield list(samples_of(index, each.rows, direct.contents, self.url))
            return
        is_file = self._file.is_file
        gap, most = (
            (GAP_BYTES_MAX, FILE_BYTES_MAX) if is_file else (GAP_BYTES_STORE, RANGE_BYTES_MAX)
        )
        room = self._room if self._is_forward else Room()  # several threads may be here
        for each in _ranges(index, rows, gap, most):
            view = room.view(each.high - each.low)
            self._file.read_into(view, each.low)
            contents = copied_from(view, each.low)
            yield list(samples_of(index, each.rows, contents, self.url))

    def _of_shard(self, shard: Shard, rows: Int64s) -> Iterator[list[Sample]]:
        self._check_rows(rows, len(shard))
        some, left = list[Sample](), DECODED_BYTES_MAX
        for row in rows.tolist():
            some.append(sample_of(shard[row], self.url))
            left -= bytes_of(some[-1:])
            if left <= 0:
                yield some
                some, left = [], DECODED_BYTES_MAX
        yield some

    def _check_rows(self, rows: Int64s, count: int) -> None:
        if len(rows) and int(rows[-1]) >= count:
            self._place.wrong_count(count)
