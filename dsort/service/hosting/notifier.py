"""The thread that calls hooks when jobs have ended."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Final

from dsort.log_lines import logger_of
from dsort.results.hooks import call_hook
from dsort.service.jobs.notices import Notice, NoticeStore
from dsort.service.threads import TurnThread
from dsort.storage.network_policy import FetchPolicy

__all__ = ["Notifier"]

LOOK_S: Final = 2.0
AT_ONCE_MAX: Final = 4
"""The most hooks that are called at once: a webhook that does not answer holds up no others, and
uses no more threads than these."""

log = logger_of("service")


class Notifier(TurnThread):
    """Delivers the notices of a service, from ``start`` to ``close``. Each replica has one
    notifier. A notice that is being delivered when it closes may be delivered again by the next
    one.

    ``commands``: what hooks may run; ``policy``: which servers webhooks may be on.
    """

    def __init__(
        self,
        store: NoticeStore,
        *,
        commands: Mapping[str, Sequence[str]],
        policy: FetchPolicy,
        look_s: float = LOOK_S,
    ) -> None:
        super().__init__("dsort-notices", look_s)
        self._store = store
        self._commands = commands
        self._policy = policy
        self._room = threading.Semaphore(AT_ONCE_MAX)

    def _turn(self) -> float:
        while not self._over.is_set():
            if not self._room.acquire(timeout=self._look_s):
                continue
            notice = None
            try:
                notice = self._store.take()
            finally:
                if notice is None:
                    self._room.release()
            if notice is None:
                break
            # A daemon: the service does not wait for a slow hook when it ends.
            threading.Thread(target=self._give, args=(notice,), daemon=True).start()
        return self._look_s

    def _give(self, notice: Notice) -> None:
        try:
            self._call(notice)
        except Exception:
            log.exception("notice %d", notice.number)
        finally:
            self._room.release()

    def _call(self, notice: Notice) -> None:
        failures = call_hook(
            notice.hook, notice.document, commands=self._commands, policy=self._policy
        )
        for failure in failures:
            log.warning("job %s, try %d: %s", notice.job_id, notice.tries, failure)
        self._store.record_outcome(notice, "; ".join(failures))
