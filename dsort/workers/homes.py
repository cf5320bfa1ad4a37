"""Homes: the scratch directories of one job, one on each node, and how one is read from another.

What an extractor or orderer writes stays in the home of its worker. Whoever needs it *asks* that
home: a :class:`Request` is answered where the files are, and only its answer travels.
"""

from __future__ import annotations

import json
import os
import pickle
import secrets
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dsort.core.columns import Int32s, Int64s
from dsort.errors import StorageError
from dsort.storage.os_errors import StorageErrors
from dsort.workers.index_store import IndexStore
from dsort.workers.tasks import WorkerSetup

__all__ = ["Exchange", "Homes", "Request", "Where", "home_owner", "make_home"]

HOME_FILE = "home.json"
OWNER_FILE = "owner.json"
BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")
ASKS_IN_FLIGHT_MAX = 16
"""So many answers to small questions may be on their way at once."""


def make_home(directory: Path, owner: Mapping[str, str]) -> str:
    """Make the scratch directory ``directory`` if there is none; the id of this home.

    One that was left by a coordinator that died keeps its id, and so its files are used again,
    unless the machine was started anew since: what was not on disk by then is gone, and nothing
    says which. ``owner`` (job and bucket) is for ``dsort gc``.
    """
    with StorageErrors("make the scratch directory", str(directory)):
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = directory / HOME_FILE
        boot = _boot_id()
        if path.exists():
            known = _known_home(path, boot)
            if known:
                return known
            for entry in directory.iterdir():
                if entry.is_dir() and not entry.is_symlink():  # of a node of a cluster
                    shutil.rmtree(entry)
                else:
                    entry.unlink()
        home = secrets.token_hex(8)
        (directory / OWNER_FILE).write_text(json.dumps(dict(owner)), encoding="utf-8")
        part = directory / f"{HOME_FILE}.part"
        part.write_text(json.dumps({"home": home, "boot_id": boot}), encoding="utf-8")
        part.replace(path)
    return home


def _known_home(path: Path, boot: str) -> str:
    """The id in a home file of this boot; "" for anything else, such as a file that a power cut
    has left empty."""
    try:
        known = json.loads(path.read_bytes())
        return str(known["home"]) if known["boot_id"] == boot else ""
    except (ValueError, LookupError, TypeError):
        return ""


def home_owner(setup: WorkerSetup) -> dict[str, str]:
    """Whose scratch it is."""
    created = datetime.now(UTC).isoformat(timespec="seconds")
    return {"job_id": setup.job_id, "output_uri": setup.output_uri, "created": created}


def _boot_id() -> str:
    try:
        return BOOT_ID_FILE.read_text(encoding="ascii").strip()
    except OSError:  # no Linux: then only this process's word is trusted
        return f"pid-{os.getpid()}"


class Request(Protocol):
    """A question about scratch files. A frozen value that can be sent to any node."""

    def answer(self, store: IndexStore) -> Any:
        """The answer, from the files of the home that was asked."""


class Exchange(Protocol):
    """Carries requests to other homes. Given to workers by their runtime."""

    def begin(self, home: str, request: Request) -> Callable[[], Any]:
        """Send ``request``; the call returned waits for its answer and gives it.

        ``ScratchLostError`` from either if that home is gone.
        """


class Homes:
    """All homes of a job, as seen from one of them. ``exchange``: None where it is the only one."""

    def __init__(self, home: str, store: IndexStore, exchange: Exchange | None) -> None:
        self.home = home
        self.store = store
        self.alone = exchange is None
        self._exchange = exchange
        self._where: tuple[str, Where] | None = None

    def ask(self, home: str, request: Request) -> Any:
        """The answer of ``home``."""
        return self._begin(home, request)()

    def ask_all(
        self, asks: Iterable[tuple[str, Request]], *, in_flight_max: int = ASKS_IN_FLIGHT_MAX
    ) -> Iterator[Any]:
        """The answers in the order of ``asks``; at most ``in_flight_max`` are on their way, the
        first of them from now on."""
        rest = iter(asks)
        first = (self._begin(home, request) for home, request in islice(rest, in_flight_max))
        return self._answers(deque(first), rest)

    def _answers(
        self, waiting: deque[Callable[[], Any]], rest: Iterator[tuple[str, Request]]
    ) -> Iterator[Any]:
        while waiting:
            answer = waiting.popleft()()
            for home, request in islice(rest, 1):
                waiting.append(self._begin(home, request))
            yield answer

    def where(self, name: str) -> Where:
        """The shared file ``name`` that says where everything is."""
        if self._where is None or self._where[0] != name:
            self._where = (name, Where.load(self.store.file_bytes(name)))
        return self._where[1]

    def _begin(self, home: str, request: Request) -> Callable[[], Any]:
        if home == self.home:
            return partial(request.answer, self.store)
        if self._exchange is None:
            raise StorageError(f"scratch {home} is not here, and nothing leads to it")
        return self._exchange.begin(home, request)


@dataclass(frozen=True, slots=True, eq=False)
class Where:
    """Which home has the index (and spill) of each shard: ``homes[home_of[shard]]``.

    ``home_of`` has shape ``(shards,)``; -1: the shard has no records. Ids keep their places in
    ``homes`` from one version to the next.
    """

    homes: tuple[str, ...]
    home_of: Int32s

    def dump(self) -> bytes:
        """As a file."""
        return pickle.dumps((self.homes, self.home_of.tobytes()), protocol=5)

    @staticmethod
    def load(data: bytes) -> Where:
        """What ``dump`` made; our own scratch file."""
        homes, column = pickle.loads(data)
        return Where(homes, np.frombuffer(column, np.int32))

    def by_home(self) -> list[tuple[str, Int64s]]:
        """(home, its shards in ascending order) of every home that has any."""
        found = []
        for number, home in enumerate(self.homes):
            shards = np.flatnonzero(self.home_of == number).astype(np.int64)
            if len(shards):
                found.append((home, shards))
        return found
