"""How payload moves from input to output shards: chosen once for a job, and sent to each worker."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Final

from msgspec import Struct
from msgspec.structs import replace

from dsort.errors import SpecError
from dsort.sizes import format_bytes

COORDINATOR_BYTES = 48 << 20
WORKER_BYTES = 32 << 20
"""The memory of a process before it holds any data: Python, NumPy and dsort's code. Measured: 34
and 19 MB of private memory; shared libraries are counted once."""
BUFFER_BYTES_MIN = 8 << 20
BUFFER_BYTES_MAX = 4 << 30
PARTITIONS_MAX = 4096
PARTITIONS_A_WORKER = 16
MAP_PARTITION_BYTES = 256 << 20
PARTITIONS_A_BUFFER = 2
"""A partition of few large records varies much in size, so half a buffer is planned for each."""
PARTITION_BYTES_MIN = 1 << 20
SHORT_PARTITION_BYTES = 32 << 20
"""The most bytes in a partition where records may be short: half a million lines of 66 bytes. Their
columns take some 50 MB while they are ordered, and stay partly in the processor's cache."""
MAP_SHARE = 0.5
"""The share of the usable memory that inputs may take under ``map``: outputs are written through
the same page cache, and the index needs memory, too."""
BUFFER_SHARE = 0.75
"""The share of a worker's memory that is its payload buffer. The rest is for index columns, and for
dirty pages on their way to the disk."""


class NotMappableError(ValueError):
    """The inputs cannot be read in the way that was requested."""

    def __init__(self, refusal: str, hint: str) -> None:
        super().__init__(refusal)
        self.hint = hint


class TooLittleMemoryError(ValueError):
    """The given memory cannot hold the smallest working set."""


class Load(Struct, frozen=True):
    """The facts that the choice of a movement depends on.

    ``input_bytes``: the size of all inputs in the form in which they move; for ``encoded`` inputs,
    about their decoded size. ``memory_bytes``: the most that the whole job may use on one node.
    ``workers`` are spread over ``nodes``. ``unmappable``: why the inputs cannot be mapped,
    ``no_range``: why records cannot be read by range; "" if they can. ``range_suits`` returns why
    reading by range is better than ``spill`` ("" if it is not), and may read inputs for that.
    ``upload_bytes``, ``table_bytes``: memory that each worker needs besides its buffer, for uploads
    and for the table of an input shard. ``short_records``: records may be so short that the columns
    of the index are as large as the records. ``turns_a_buffer``: a partition is planned to fill 1 /
    ``turns_a_buffer`` of a buffer.
    """

    input_bytes: int
    memory_bytes: int
    workers: int
    nodes: int = 1
    unmappable: str = ""
    encoded: bool = False
    no_range: str = ""
    range_suits: Callable[[], str] = lambda: ""
    upload_bytes: int = 0
    table_bytes: int = 0
    short_records: bool = False
    turns_a_buffer: int = PARTITIONS_A_BUFFER

    @property
    def workers_a_node(self) -> int:
        """The most workers on one node."""
        return -(-self.workers // self.nodes)

    @property
    def more_bytes(self) -> int:
        """The bytes that each worker needs besides its buffer."""
        return self.upload_bytes + self.table_bytes

    def why_not_in_memory(self) -> tuple[str, str]:
        """Two texts for people: (why the inputs cannot be mapped, "" if they can; a sentence about
        inputs that are too large for the memory)."""
        size, memory = format_bytes(self.input_bytes), format_bytes(self.memory_bytes)
        unmappable = self.unmappable
        if self.encoded:
            unmappable = f"the inputs are compressed: they are decoded once, to about {size}"
        return unmappable, f"{size} of inputs do not fit twice in the {memory} that the job may use"


class Way(ABC):
    """One way to move payload, with the conditions under which it is chosen, and its properties for
    the phases of a job. How creators read payload is in ``dsort.moves``, under the same name.

    ``keeps_mappings``: extraction leaves its mappings of inputs to creators. ``spills``: extraction
    writes payload to scratch. ``reads_ranges``: creators read inputs record by record.
    ``moves_payload``: creators write payload, and not only the places of payload. ``instead``: the
    hint if ``refusal`` returns a reason.
    """

    name: ClassVar[str]
    keeps_mappings: ClassVar[bool] = False
    spills: ClassVar[bool] = False
    reads_ranges: ClassVar[bool] = False
    moves_payload: ClassVar[bool] = True
    instead: ClassVar[str] = "use --move spill"

    @abstractmethod
    def refusal(self, load: Load) -> str:
        """Why payload cannot move this way; "" if it can. ``Load`` has the reasons: ``encoded`` or
        ``unmappable`` inputs cannot be mapped, and ``no_range`` forbids reading by range."""

    @abstractmethod
    def reason(self, load: Load) -> str:
        """Why this way is better than the later ways in ``WAYS``; "" if it is not."""

    def partitions(self, load: Load, buffer_bytes: int) -> int:
        """The number of partitions. Ordering handles one partition per task and holds the index of
        that partition in memory. So there are at least as many partitions as workers. Their number
        grows with the data, and a worker's memory does not."""
        most_bytes = SHORT_PARTITION_BYTES if load.short_records else MAP_PARTITION_BYTES
        return min(max(load.input_bytes // most_bytes, load.workers), PARTITIONS_MAX)

    def scratch_bytes(self, load: Load) -> int:
        """The bytes that index files and spill need in scratch."""
        return load.input_bytes // 20

    def needed_bytes(self, load: Load, buffer_bytes: int) -> int:
        """The memory that the workers of a node need, including pages that must be in the page
        cache."""
        buffer_bytes = min(buffer_bytes, max(load.input_bytes, BUFFER_BYTES_MIN))
        own_bytes = WORKER_BYTES + load.more_bytes + int(buffer_bytes / BUFFER_SHARE)
        return load.workers_a_node * own_bytes


class Map(Way):
    """Creators write slices of mapped inputs."""

    name = "map"
    keeps_mappings = True

    def refusal(self, load: Load) -> str:
        if load.encoded:
            return "the inputs cannot be mapped: they are compressed"
        return load.unmappable and f"payload cannot be mapped: {load.unmappable}"

    def reason(self, load: Load) -> str:
        room_bytes = load.memory_bytes - load.workers_a_node * load.table_bytes
        if load.input_bytes > room_bytes * MAP_SHARE:
            return ""
        size, memory = format_bytes(load.input_bytes), format_bytes(load.memory_bytes)
        return f"{size} of inputs fit twice in the {memory} that the job may use"

    def needed_bytes(self, load: Load, buffer_bytes: int) -> int:
        own_bytes = load.workers_a_node * (WORKER_BYTES + load.more_bytes)
        return own_bytes + int(load.input_bytes / MAP_SHARE)


class Range(Way):
    """Creators read each record directly from the inputs."""

    name = "range"
    reads_ranges = True

    def refusal(self, load: Load) -> str:
        return load.no_range and f"records cannot be read by range: {load.no_range}"

    def reason(self, load: Load) -> str:
        suited = load.range_suits()
        if not suited:
            return ""
        unmappable, too_large = load.why_not_in_memory()
        return suited if unmappable else f"{too_large}: {suited}"


class Spill(Way):
    """Extraction writes payload to scratch, in partitions that creators read."""

    name = "spill"
    spills = True

    def refusal(self, load: Load) -> str:
        return ""

    def reason(self, load: Load) -> str:
        unmappable, too_large = load.why_not_in_memory()
        return unmappable or too_large

    def partitions(self, load: Load, buffer_bytes: int) -> int:
        """Several partitions per worker, because a partition that two workers share is read
        twice."""
        enough = min(load.workers * PARTITIONS_A_WORKER, load.input_bytes // PARTITION_BYTES_MIN)
        if load.short_records:
            enough = max(enough, load.input_bytes // SHORT_PARTITION_BYTES)
        fit = -(-load.input_bytes * load.turns_a_buffer // buffer_bytes)
        return min(max(fit, enough, load.workers), PARTITIONS_MAX)

    def scratch_bytes(self, load: Load) -> int:
        return load.input_bytes + super().scratch_bytes(load)


class View(Range):
    """Creators list where records are in the inputs. Never chosen for shards."""

    name = "view"
    moves_payload = False
    instead = "leave out output: view"

    def refusal(self, load: Load) -> str:
        return "records cannot be read by range: some inputs are compressed" if load.encoded else ""

    def reason(self, load: Load) -> str:
        return "a view points into its inputs, and moves no payload"


WAYS: dict[str, Way] = {way.name: way for way in (Map(), Range(), Spill())}
"""The first way that is possible and has a reason is chosen. The last one always qualifies."""
EVERY_WAY: Final[dict[str, Way]] = WAYS | {View.name: View()}


class MovementSizes(Struct, frozen=True):
    """``memory_bytes``: the memory that the job may use on a node; ``needed_bytes``: the part that
    it needs, including the page cache for ``map``. ``scratch_bytes``: room that spill and index
    files need. ``payload_bytes``: the size of all inputs in the form in which they move; an
    estimate if ``encoded_inputs``."""

    memory_bytes: int
    needed_bytes: int
    scratch_bytes: int
    payload_bytes: int = 0
    encoded_inputs: bool = False


class Movement(Struct, frozen=True):
    """The ``way`` that payload moves, with its sizes; ``reason`` explains the choice to people.

    ``buffer_bytes``: the size of each worker's single payload buffer. ``spill`` reads an input
    shard that fits in the buffer once, and a larger one twice, window by window; ``range`` reads
    records into the buffer. ``partitions``: the number of ranges of sort keys that records are
    spread over. ``values_stay``: rows of tables are spilled without long values, if these can be
    read from mapped inputs. ``hops``: under ``range``, headers are so far apart that they are read
    one by one; without it, shards are read whole. ``to_disk``: scratch is too large to stay in
    memory until it is removed; ``past_cache``: scratch is so large that almost nothing of it is
    still in the page cache when it is read.
    """

    way: Way
    reason: str
    workers: int
    partitions: int
    buffer_bytes: int
    sizes: MovementSizes
    values_stay: bool = False
    hops: bool = False
    to_disk: bool = True
    past_cache: bool = False


NO_MOVEMENT = Movement(WAYS["map"], "", 0, 0, 0, MovementSizes(0, 0, 0))
"""Before a movement is chosen: it has no workers."""


# `map` (creators write slices of mapped inputs) is three times as fast as `spill` as long as the
# inputs stay in the page cache, and fifty times slower once they do not. So `map` is chosen only
# for inputs that surely fit; a wrong choice of `spill` costs a factor of three. `range` reads large
# records directly from the inputs, on disks that read at random as fast as in sequence.
def choose_movement(load: Load, forced: str = "auto", *, only: str = "") -> Movement:
    """Choose how payload moves. ``forced``: the name of the movement that the user asked for;
    ``only``: the name of the only movement that can make the result, "" if any can.

    Raises:
        NotMappableError: the inputs cannot be moved in the requested way. TooLittleMemoryError: the
        smallest working set does not fit.
    """
    way, reason = _way(load, forced, only)
    load, buffer_bytes = _with_workers_that_fit(load)
    needed_bytes = COORDINATOR_BYTES + way.needed_bytes(load, buffer_bytes)
    return Movement(
        way=way,
        reason=reason,
        workers=load.workers,
        partitions=way.partitions(load, buffer_bytes),
        buffer_bytes=buffer_bytes,
        sizes=MovementSizes(
            *(load.memory_bytes, needed_bytes, way.scratch_bytes(load), load.input_bytes),
            encoded_inputs=load.encoded,
        ),
    )


def _way(load: Load, forced: str, only: str) -> tuple[Way, str]:
    if forced == "auto" and not only:
        return _first_with_reason(load)
    if forced not in WAYS and not only:
        raise SpecError(f"unknown move {forced}", hint=f"auto, {', '.join(WAYS)}")
    way = EVERY_WAY[only or forced]
    if refusal := way.refusal(load):
        raise NotMappableError(refusal, way.instead)
    return way, way.reason(load) if only else f"asked for: {forced}"


def _first_with_reason(load: Load) -> tuple[Way, str]:
    for way in WAYS.values():
        if not way.refusal(load) and (reason := way.reason(load)):
            return way, reason
    raise AssertionError("the last movement is possible, and has a reason")


def _with_workers_that_fit(load: Load) -> tuple[Load, int]:
    """``load`` with as many workers as have room, and the bytes of each one's payload buffer.
    The number of workers is reduced so far that their buffers are not tiny."""
    for count in range(load.workers_a_node, 0, -1):
        share = (load.memory_bytes - COORDINATOR_BYTES) // count - WORKER_BYTES - load.more_bytes
        buffer_bytes = int(share * BUFFER_SHARE)
        if buffer_bytes >= BUFFER_BYTES_MIN:
            workers = min(load.workers, count * load.nodes)
            return replace(load, workers=workers), min(buffer_bytes, BUFFER_BYTES_MAX) & ~0xFFF
    needed = least_memory_bytes(load.more_bytes)
    raise TooLittleMemoryError(
        f"{load.memory_bytes >> 20} MiB of memory are too little; a job needs "
        f"{-(-needed >> 20)} MiB"
    )


def least_memory_bytes(upload_bytes: int = 0) -> int:
    """The memory of the smallest working set on a node: a coordinator, and a worker with the
    smallest buffer. ``upload_bytes``: more memory that the worker needs, for uploads and tables."""
    return COORDINATOR_BYTES + _least_worker_bytes(upload_bytes)


def workers_that_fit(memory_bytes: int, workers: int) -> int:
    """How many of ``workers`` fit in ``memory_bytes`` beside a coordinator; at least one."""
    fit = (memory_bytes - COORDINATOR_BYTES) // _least_worker_bytes(0)
    return max(1, min(workers, fit))


def _least_worker_bytes(upload_bytes: int) -> int:
    return WORKER_BYTES + upload_bytes + int(BUFFER_BYTES_MIN / BUFFER_SHARE) + 1
