"""Events as they happen: one thread reads them from the database and passes them to all
subscribers.

There is one query in each turn, whatever the number of open streams.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dsort.service.jobs.rows import EventRow
from dsort.service.jobs.store import JobStore
from dsort.service.threads import TurnThread

TURN_S = 0.25
TRAIL_S = 5.0
"""In PostgreSQL an event with a lower number may be committed after one with a higher number,
within the longest transaction that writes events. So numbers that were skipped are looked up again
for this many seconds."""
WAITING_MAX = 1000
"""The most events that may wait for one stream. If there are more, the stream is closed, and its
client requests the rest."""

Subscriber = asyncio.Queue[EventRow | None]


class ChangeFeed(TurnThread):
    """All events from now on. ``listener`` is called with each event, in the feed's thread."""

    def __init__(
        self,
        store: JobStore,
        *,
        trails: bool,
        listener: Callable[[EventRow], None] = lambda event: None,
    ) -> None:
        super().__init__("dsort-feed", TURN_S)
        self._store = store
        self._trail_s = TRAIL_S if trails else 0.0
        self._listener = listener
        self._low = store.last_event()  # all events up to this number were passed on
        self._seen: dict[int, float] = {}  # higher numbers that were passed on, and when
        self._lock = threading.Lock()
        self._watched: dict[str, set[tuple[asyncio.AbstractEventLoop, Subscriber]]] = {}

    def end(self) -> None:
        """End all streams, and return at once: from a signal handler, too."""
        self._over.set()  # first, so that a stream that begins meanwhile ends, too
        self._woken.set()
        for watchers in list(self._watched.values()):
            for loop, queue in list(watchers):
                _hand_on(loop, queue, None)

    def close(self) -> None:
        """End all streams, and the thread."""
        self.end()
        super().close()

    @contextmanager
    def watch(self, job_id: str) -> Iterator[Subscriber]:
        """A queue that receives every event of the job from now on; None ends the events. Called in
        the event loop that reads the queue."""
        watcher = (asyncio.get_running_loop(), Subscriber(WAITING_MAX))
        with self._lock:
            self._watched.setdefault(job_id, set()).add(watcher)
        try:
            if self._over.is_set():
                watcher[1].put_nowait(None)
            yield watcher[1]
        finally:
            with self._lock:
                watchers = self._watched[job_id]
                watchers.discard(watcher)
                if not watchers:
                    del self._watched[job_id]

    def _turn(self) -> float:
        """Pass on the events since the last turn."""
        now_s = time.monotonic()
        for event in self._new_events():
            self._seen[event.number] = now_s
            self._listener(event)
            with self._lock:
                for loop, queue in self._watched.get(event.job_id, ()):
                    _hand_on(loop, queue, event)
        settled = [at for at, seen_s in self._seen.items() if now_s - seen_s >= self._trail_s]
        if settled:
            # A lower number that has not come by now belongs to a transaction that was rolled back.
            self._low = max(self._low, *settled)
            self._seen = {at: seen for at, seen in self._seen.items() if at > self._low}
        return TURN_S

    def _new_events(self) -> Iterator[EventRow]:
        after = self._low
        while True:
            found = self._store.events_after(after)
            yield from (event for event in found if event.number not in self._seen)
            if not found:
                return
            after = found[-1].number


def _hand_on(loop: asyncio.AbstractEventLoop, queue: Subscriber, event: EventRow | None) -> None:
    def put() -> None:
        if queue.full():  # the subscriber is too slow: its client has to connect again
            while not queue.empty():
                queue.get_nowait()
            queue.put_nowait(None)
        else:
            queue.put_nowait(event)

    if not loop.is_closed():
        loop.call_soon_threadsafe(put)
