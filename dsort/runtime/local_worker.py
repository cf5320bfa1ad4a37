"""The process that hosts one worker of the local runtime: reads tasks from a socket, answers."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path

from dsort.errors import DsortError
from dsort.runtime.base import answer
from dsort.scratch.index import IndexStore
from dsort.scratch.nodes import ScratchNodes, open_scratch
from dsort.workers.heap import Heap
from dsort.workers.worker import Worker

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve the coordinator at the other end of the socket whose descriptor is ``argv[1]``."""
    serve(os.dup(int(sys.argv[1])), int(sys.argv[2]))


def serve(descriptor: int, parent: int) -> None:
    """Serve the coordinator at the other end of the socket until it closes that. ``parent``: its
    process, with which this one ends."""
    _die_with(parent)
    # Slices by the hundred thousand set off one collection after another, of objects that form no
    # cycles: 10 % of the time of a job of small records.
    gc.disable()
    link = Connection(descriptor)
    worker: Worker | None = None
    try:
        setup, number, node = link.recv()
        try:
            store = IndexStore(open_scratch(Path(setup.scratch), node))
            nodes = ScratchNodes(node, store, None)
            worker = Worker(setup, number, nodes, Heap(setup.movement.buffer_bytes))
        except DsortError as error:
            link.send(error)
            return
        link.send(None)
        while True:
            ticket, task = link.recv()
            link.send((ticket, *answer(worker, task)))
    except (EOFError, ConnectionError):
        return  # the coordinator is done with us, or gone
    finally:
        if worker is not None:
            worker.close()


def _die_with(parent: int) -> None:
    """Have the kernel end this process with its parent, whatever happens to that."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(0)


if __name__ == "__main__":
    main()
