"""The worker: one process (or actor) that does any task of its job. A plain class."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Final

from dsort.containers.registry import register_received
from dsort.moves.base import WorkerParts
from dsort.moves.map import MappedInputs
from dsort.moves.payload_files import PayloadBuffer
from dsort.scratch.nodes import ScratchNodes
from dsort.storage.open import open_pair
from dsort.workers.creator import Creator, Sealer, publish_all
from dsort.workers.extractor import Extractor
from dsort.workers.operators.known_keys import read_known_keys
from dsort.workers.orderer import Orderer
from dsort.workers.tasks import (
    CreateTask,
    CutTask,
    DuplicatesTask,
    ExtractRunTask,
    ExtractTask,
    KnownKeysTask,
    MeasureTask,
    OrderRunTask,
    OrderTask,
    PublishTask,
    SealTask,
    Task,
    TaskDone,
    WorkerSetup,
)

INPUTS_OPEN_MAX = 16384
PLENTY_BYTES = 256 << 20
PURGE_DELAY_MS = "10000"
"""pyarrow's allocator returns free pages at once, by default. New pages for each batch took a fifth
of the processor time of compressed rows. A worker with a buffer of ``PLENTY_BYTES`` can afford to
keep the pages."""
# The numbers in malloc.h. Once one of them is set, glibc no longer adjusts the others.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
HEAP_BLOCK_BYTES_MAX: Final = 32 << 20
"""The most that glibc accepts. Larger blocks are requested from the kernel each time."""
KEPT_BYTES_MAX: Final = 256 << 20


class Worker:
    """Does tasks one at a time. ``number`` is unique in the job; replacements get a new one."""

    def __init__(
        self, setup: WorkerSetup, number: int, nodes: ScratchNodes, heap: Heap | None = None
    ) -> None:
        """``heap``: the heap of the process, if the process runs only this worker."""
        self.nodes = nodes
        self._heap = heap
        root = Path(setup.root)
        inputs, outputs = open_pair(setup.inputs, setup.outputs, root, setup.fetch)
        if setup.pipeline.reading.makes_shards:
            from dsort.loose_files.bucket import of_shared_files  # other jobs read shards

            inputs = of_shared_files(inputs, setup.pipeline.reading.names, nodes.store)
        extensions = (each.extension for each in setup.pipeline.targets)
        register_received(setup.pipeline.all_containers, extensions)
        self._setup, self._outputs = setup, outputs
        carrier = setup.pipeline.carrier
        parts = WorkerParts(
            setup.movement,
            carrier,
            inputs,
            nodes,
            PayloadBuffer(setup.movement.buffer_bytes),
            MappedInputs(inputs, nodes.store, open_max=INPUTS_OPEN_MAX),
            setup.seals_later,
        )
        self._buffer = parts.buffer
        if carrier.is_columnar and setup.movement.buffer_bytes >= PLENTY_BYTES:
            # pyarrow reads this variable once, when it is loaded.
            os.environ.setdefault("MIMALLOC_PURGE_DELAY", PURGE_DELAY_MS)
        self._extractor = Extractor(setup, number, parts)
        self._creator = Creator(setup, number, outputs, parts)
        self._orderer = Orderer(
            nodes,
            setup.pipeline.algorithm,
            carrier,
            spill=setup.movement.way.spills,
            has_outputs=bool(setup.pipeline.division),
            join=setup.pipeline.join,
        )
        self._sealer = Sealer(setup, outputs, parts)

    def do(self, task: Task) -> TaskDone:
        """Do ``task``. Errors are ``DsortError`` and its subclasses."""
        if self._heap is not None:
            self._heap.enter(task.phase)
        # Other tasks need the memory of the processes of user code, and an idle process may hold a
        # GPU.
        if not isinstance(task, (ExtractTask, ExtractRunTask)):
            self._extractor.rest()
        match task:
            case ExtractTask():
                return self._extractor.extract(task)
            case ExtractRunTask():
                return self._extractor.extract_run(task)
            case KnownKeysTask():
                return read_known_keys(task, self._outputs, self._buffer, self._setup, self.nodes)
            case DuplicatesTask():
                return self._orderer.duplicates(task)
            case OrderTask():
                return self._orderer.order(task)
            case OrderRunTask():
                return self._orderer.order_run(task)
            case CutTask():
                return self._orderer.cut(task)
            case MeasureTask():
                return self._creator.measure(task)
            case CreateTask():
                return self._creator.create(task)
            case SealTask():
                return self._sealer.seal(task)
            case PublishTask():
                return publish_all(task, self._outputs)

    def close(self) -> None:
        """Close files and unmap inputs."""
        self._extractor.close()
        self._creator.close()


class Heap:
    """The heap of a process that runs only one worker."""

    def __init__(self, buffer_bytes: int) -> None:
        """Set the heap to keep freed memory while a phase lasts: as much as the payload buffer has
        (``buffer_bytes``), and at most ``KEPT_BYTES_MAX``."""
        libc = ctypes.CDLL(None)
        self._trim = getattr(libc, "malloc_trim", None)
        self._phase = ""
        set_option = getattr(libc, "mallopt", None)
        if set_option is not None:
            set_option(_MMAP_THRESHOLD, HEAP_BLOCK_BYTES_MAX)
            set_option(_TRIM_THRESHOLD, min(buffer_bytes, KEPT_BYTES_MAX))

    def enter(self, phase: str) -> None:
        """Begin work of ``phase``: return the freed memory of an earlier phase to the kernel."""
        # Within a phase, tasks are alike, and use the same memory again.
        if phase != self._phase and self._phase and self._trim is not None:
            self._trim(0)
        self._phase = phase
