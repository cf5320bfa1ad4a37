"""Scratch nodes: the scratch directories of a job, one on each node, and requests between nodes.

Files of an extractor or orderer stay on the node of its worker. Other nodes send a :class:`Request`
to the node that has the files, so only the answer travels.
"""

from __future__ import annotations

import json
import os
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from dsort.data.columns import BytesColumn, Int32s, Int64s
from dsort.data.index import (
    BLOCK_LENGTH,
    BLOCK_ROWS,
    BLOCK_SHARD,
)
from dsort.data.table import Table
from dsort.errors import InvariantError, ObjectNotFoundError, StorageError
from dsort.scratch.columns import ColumnFile, columns_bytes
from dsort.scratch.directory import Scratch
from dsort.scratch.index import IndexStore
from dsort.scratch.requests import OrderedRowsOf, SpillBlocksOf
from dsort.scratch.tables import OrderedRows

NODE_FILE = "node.json"
OWNER_FILE = "owner.json"
BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")
NODE_FILE_BYTES_MAX = 1 << 20
ASKS_IN_FLIGHT_MAX = 16
"""The most small requests in flight at once."""
Answer = TypeVar("Answer", covariant=True)


def make_scratch(directory: Path, owner: Mapping[str, str]) -> str:
    """Make the scratch directory ``directory`` if it does not exist; return the id of this node.

    A directory that a dead coordinator has left keeps its id, so its files are used again. After a
    restart of the machine, the directory is cleared, because some of its files may not have reached
    the disk, and nothing shows which. ``owner`` (job and bucket) is for ``dsort gc``.
    ``StorageError`` for a directory that does not belong to this user alone, or to this job.
    """
    with Scratch(directory, make=True) as scratch:
        _refuse_others(scratch, owner.get("job_id", ""))
        boot = boot_id()
        if scratch.has(NODE_FILE):
            known = _known_node(scratch, boot)
            if known:
                return known
            scratch.clear()
        node = secrets.token_hex(8)
        # The owner is written first: a directory with other files and no owner is refused.
        scratch.write(OWNER_FILE, json.dumps(dict(owner)).encode())
        scratch.write(NODE_FILE, json.dumps({"node": node, "boot_id": boot}).encode())
    return node


def open_scratch(directory: Path, node: str) -> Scratch:
    """Open the scratch directory that ``make_scratch`` has made. ``StorageError`` if it was
    replaced since."""
    scratch = Scratch(directory)
    if _stored(scratch, NODE_FILE).get("node") != node:
        scratch.close()
        raise StorageError(
            f"scratch directory {directory} was replaced after the job made it",
            hint="check who may write to the directory that contains it",
        )
    return scratch


def _refuse_others(scratch: Scratch, job_id: str) -> None:
    """``StorageError`` if the directory has other files, which must not be removed."""
    names = scratch.names()
    stored = _stored(scratch, OWNER_FILE) if OWNER_FILE in names else {}
    whose = str(stored.get("job_id", job_id))
    stray = [
        name
        for name in names
        # `owner.json.<pid>.part` is of a process that died before the directory had an owner.
        if not name.startswith(f"{OWNER_FILE}.") and not _is_scratch_of(scratch, name, job_id)
    ]
    if whose == job_id and (OWNER_FILE in names or not stray):
        return
    of = f"of job {whose}" if whose != job_id else f"that are not dsort's, such as {stray[0]}"
    raise StorageError(
        f"scratch directory {scratch} has files {of}",
        hint="remove it, or have scratch somewhere else: --scratch",
    )


def _is_scratch_of(scratch: Scratch, name: str, job_id: str) -> bool:
    """Whether ``name`` is the scratch of a node, from an earlier attempt on a cluster."""
    try:
        with Scratch(Path(str(scratch)) / name) as below:
            return bool(job_id) and _stored(below, OWNER_FILE).get("job_id") == job_id
    except StorageError:
        return False


def _known_node(scratch: Scratch, boot: str) -> str:
    """The id in a node file of this boot; "" for all other content, such as the empty file that a
    power cut may leave."""
    known = _stored(scratch, NODE_FILE)
    return str(known.get("node", "")) if known.get("boot_id") == boot else ""


def _stored(scratch: Scratch, name: str) -> dict[str, object]:
    """The JSON object in a small file; empty for any other content."""
    try:
        content = json.loads(scratch.read(name, bytes_max=NODE_FILE_BYTES_MAX))
    except (ObjectNotFoundError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def scratch_owner(job_id: str, output_uri: str) -> dict[str, str]:
    """The content of the file that identifies the owner of scratch."""
    created = datetime.now(UTC).isoformat(timespec="seconds")
    return {"job_id": job_id, "output_uri": output_uri, "created": created}


def boot_id() -> str:
    try:
        return BOOT_ID_FILE.read_text(encoding="utf-8").strip()
    except OSError:  # not on Linux: scratch is then valid only for this process
        return f"pid-{os.getpid()}"


class RequestFor(Protocol[Answer]):
    """A request about scratch files. A frozen value that can be sent to any node."""

    def answer(self, store: IndexStore) -> Answer:
        """The answer, from the files of the node that received the request."""


Request = RequestFor[Any]


class Exchange(Protocol):
    """Sends requests to other nodes. Provided by the runtime of a worker."""

    def begin(self, node: str, request: Request) -> Callable[[], Any]:
        """Send ``request``. Return a function that waits for the answer and returns it.

        ``ScratchLostError``, from ``begin`` or from that function, if the node is gone.
        """


class NoExchange:
    """The ``Exchange`` of a node that is the only one."""

    def begin(self, node: str, request: Request) -> Callable[[], Any]:
        """``StorageError``: there is no other node."""
        raise StorageError(f"scratch node {node} is not this node, and cannot be reached")


class ScratchNodes:
    """All scratch nodes of a job, for a worker of the node ``node``."""

    def __init__(self, node: str, store: IndexStore, exchange: Exchange) -> None:
        self.node = node
        self.store = store
        self.alone = isinstance(exchange, NoExchange)
        self._exchange = exchange
        self._where = "", ShardLocations((), _FIRST, _FIRST)

    def ask(self, node: str, request: RequestFor[Answer]) -> Answer:
        """The answer of ``node`` to ``request``."""
        return self._begin(node, request)()

    def ask_all(
        self, asks: Iterable[tuple[str, Request]], *, in_flight_max: int = ASKS_IN_FLIGHT_MAX
    ) -> Iterator[Any]:
        """Yield the answers in the order of ``asks``. At most ``in_flight_max`` requests are in
        flight; the first ones are sent at once."""
        rest = iter(asks)
        first = (self._begin(node, request) for node, request in islice(rest, in_flight_max))
        return self._answers(deque(first), rest)

    def _answers(
        self, waiting: deque[Callable[[], Any]], rest: Iterator[tuple[str, Request]]
    ) -> Iterator[Any]:
        while waiting:
            answer = waiting.popleft()()
            # Sent before the answer is used, so that the other node is busy meanwhile.
            for node, request in islice(rest, 1):
                waiting.append(self._begin(node, request))
            yield answer

    def locations(self, name: str) -> ShardLocations:
        """The shard locations in the shared file ``name``."""
        if self._where[0] != name:
            self._where = (name, ShardLocations.load(self.store.columns(name)))
        return self._where[1]

    def _begin(self, node: str, request: RequestFor[Answer]) -> Callable[[], Answer]:
        if node == self.node:
            return partial(request.answer, self.store)
        return self._exchange.begin(node, request)


_FIRST = np.zeros(0, np.int32)


class ShardLocations(Struct, frozen=True, eq=False):
    """The node that has the index (and spill) of each shard: ``nodes[node_of[shard]]``.

    ``node_of`` has shape ``(shards,)``. It is -1 for a shard without records, and for a shard whose
    records are in the index file of another shard: ``file_of``, of the same shape, has the ordinal
    of that one. Ids keep their places in ``nodes`` from one version to the next. ``since``, of the
    same shape: the first version in which each shard is on its present node; empty: this is version
    1 for all shards.
    """

    nodes: tuple[str, ...]
    node_of: Int32s
    file_of: Int32s
    since: Int32s = _FIRST

    @property
    def version(self) -> int:
        """The last version in which a shard moved."""
        return int(self.since.max(initial=1))

    def dump(self) -> bytes:
        """The content of a file with these locations."""
        nodes = BytesColumn.of([node.encode() for node in self.nodes])
        columns = {"node_of": self.node_of, "file_of": self.file_of, "since": self.since}
        return columns_bytes({"nodes": nodes, **columns})

    @staticmethod
    def load(file: ColumnFile) -> ShardLocations:
        """The locations from which ``dump`` made ``file``."""
        nodes = tuple(
            node.decode("utf-8", "replace") for node in file.bytes_column("nodes").tolist()
        )
        return ShardLocations(nodes, *map(file.array, ("node_of", "file_of", "since")))

    def by_node(self) -> list[tuple[str, Int64s]]:
        """(node, its shards in ascending order) for every node that has shards."""
        found = []
        for number, node in enumerate(self.nodes):
            shards = np.flatnonzero(self.node_of == number).astype(np.int64)
            if len(shards):
                found.append((node, shards))
        return found


def ordered_rows(
    nodes: ScratchNodes, node: str, partition: int, locations: ShardLocations
) -> OrderedRows:
    """An ordered partition that is on ``node``, with the current places of its spill blocks.
    ``InvariantError`` if the blocks have more or fewer bytes or rows than before.

    If a node was lost, other workers have extracted its shards again: the same records in the same
    order. So the order of the partition is still valid, and only the places of blocks are requested
    again.
    """
    ordered = nodes.ask(node, OrderedRowsOf(partition))
    since = locations.since
    if ordered.version >= locations.version:
        return ordered
    asks = [
        (there, SpillBlocksOf(shards[since[shards] > ordered.version], partition))
        for there, shards in locations.by_node()
    ]
    answers = nodes.ask_all((there, request) for there, request in asks if len(request.shards))
    blocks = ordered.blocks
    moved = since[blocks[BLOCK_SHARD]] > ordered.version
    before = blocks.take(np.flatnonzero(moved))
    found = [each for some in answers for each in some if len(each)]
    now = Table.concat(found) if found else before.run(0, 0)
    if _totals(before) != _totals(now):
        raise InvariantError(
            f"partition {partition} has other records of the input shards that were extracted again"
        )
    # No shard has blocks in both tables. One run of shards may have become two runs.
    stay = blocks.take(np.flatnonzero(~moved))
    both = Table.concat([each for each in (now, stay) if len(each)] or [blocks])
    in_order = np.argsort(both[BLOCK_SHARD], kind="stable")
    return replace(ordered, blocks=both.take(in_order))


def _totals(blocks: Table) -> tuple[int, int]:
    """The number of bytes; and the number of rows, if the blocks have rows."""
    rows = int(blocks[BLOCK_ROWS].sum()) if BLOCK_ROWS in blocks else 0
    return int(blocks[BLOCK_LENGTH].sum()), rows
