"""What the agent of a node holds: the home of a job there, and answers from it to other nodes.

Names are made here, so that whoever knows a home's id finds its agent:

``seat``     ``<node id>``, or ``<node id>-<n>`` for the home that was made after ``n`` were lost
             there. The name of its directory in the job's scratch directory.
``home id``  ``<token>@<seat>``; the token is in the directory.
``agent``    ``dsort-<job id>-<attempt>-<seat>``, in Ray's namespace ``dsort``. ``attempt`` is
             another for each runtime: the agents of a coordinator that died may still be there.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from dsort.errors import DsortError, ScratchLostError
from dsort.runtime.answers import reply
from dsort.runtime.ray.messages import located, node_words
from dsort.scratch.index import IndexStore
from dsort.scratch.nodes import Request, make_home, open_home

__all__ = [
    "AGENT_THREADS",
    "NAMESPACE",
    "NodeAgent",
    "agent_name",
    "node_of",
    "remove_scratch",
    "seat_of",
    "token_of",
]

NAMESPACE = "dsort"
AGENT_THREADS = 4
"""So many questions are answered at the same time; each may be 16 MiB of payload."""

WORKERS_END_SECONDS_MAX = 5


def agent_name(prefix: str, seat: str) -> str:
    """The agent that has ``seat``; ``prefix``: job and attempt."""
    return f"dsort-{prefix}-{seat}"


def node_of(seat: str) -> str:
    """The node id of a seat."""
    return seat.partition("-")[0]


def seat_of(home: str) -> str:
    """The seat of a home, by its id."""
    return home.rpartition("@")[2]


def token_of(home: str) -> str:
    """What tells the directory of a home from any other at its seat."""
    return home.rpartition("@")[0]


class NodeAgent:
    """The home at ``seat`` of the job's ``scratch`` directory, and who answers for it.

    Ray may make it again, in a new process in place of one that died. ``address``: what errors name
    the node by; None: there is no other.
    """

    def __init__(
        self, scratch: str, seat: str, owner: Mapping[str, str], address: str | None
    ) -> None:
        node_id = node_of(seat)
        node = node_words(socket.gethostname(), address, node_id) if address else ""
        self._where = f"node {node}" if node else ""
        self._directory = Path(scratch) / seat
        self._store: IndexStore | None = None
        self._home = ""
        self._error: DsortError | None = None
        for other in self._directory.parent.glob(f"{node_id}*"):
            if other != self._directory:  # lost: what was in it is made again
                shutil.rmtree(other, ignore_errors=True)
        try:
            token = make_home(self._directory, owner)
            self._store = IndexStore(open_home(self._directory, token))
            self._home = f"{token}@{seat}"
        except DsortError as error:
            self._error = located(error, self._where)

    def open(self, files: Mapping[str, bytes]) -> tuple[str, DsortError | None]:
        """The id of this home, or why there can be none. ``files``: what was shared until now."""
        error = self._error
        for name, data in files.items():
            if error is None and self._store is not None and not self._store.scratch.has(name):
                error = self.store(name, data)
        return self._home, error

    def answer(self, home: str, request: Request) -> tuple[Any, DsortError | None]:
        """The answer to ``request``, or the error that it ended with."""
        if home != self._home or self._store is None:
            return None, ScratchLostError(home, f"scratch {home} is gone")
        answer, error = reply(request, self._store)
        return answer, error and located(error, self._where)

    def store(self, name: str, data: bytes) -> DsortError | None:
        """Store a shared file."""
        if self._store is None:
            return self._error
        try:
            self._store.write_file(name, data)
        except DsortError as error:
            return located(error, self._where)
        return None

    def close(self, workers: Sequence[int], keep: bool) -> None:
        """Wait for the ``workers`` of this node, which were told to end, to be gone (process ids),
        and remove the job's scratch unless ``keep``."""
        ending = []
        for pid in workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                ending.append(psutil.Process(pid))
        psutil.wait_procs(ending, timeout=WORKERS_END_SECONDS_MAX)
        if not keep:
            remove_scratch(self._directory.parent)


def remove_scratch(scratch: Path) -> None:
    """Remove all of a job's scratch on this machine, that of nodes which are gone as well. (Several
    agents may do so at once.)"""
    shutil.rmtree(scratch, ignore_errors=True)
