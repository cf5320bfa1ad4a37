"""The process that hosts one worker of the local runtime: reads tasks from a socket, answers."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path

from dsort.errors import DsortError
from dsort.log_lines import about_worker, lines_to_coordinator, logger_of
from dsort.runtime.base import answer
from dsort.scratch.index import IndexStore
from dsort.scratch.nodes import ScratchNodes, open_scratch
from dsort.workers.worker import Heap, Worker

PR_SET_PDEATHSIG = 1

log = logger_of("runtime")


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
    link, lock = Connection(descriptor), threading.Lock()

    def send(message: object) -> None:
        with lock:  # threads of the worker log, too
            link.send(message)

    worker: Worker | None = None
    try:
        setup, number, node = link.recv()
        lines_to_coordinator(setup.log_level, send)
        about_worker(job=setup.job_id, attempt=setup.attempt, worker=number)
        try:
            store = IndexStore(open_scratch(Path(setup.scratch), node))
            nodes = ScratchNodes(node, store, None)
            worker = Worker(setup, number, nodes, Heap(setup.movement.buffer_bytes))
        except DsortError as error:
            send(error)
            return
        send(None)
        while True:
            log.debug("worker %d waits for a task", number)
            send(answer(worker, link.recv()))
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
