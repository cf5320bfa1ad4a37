"""Tasks of workers, sent by the coordinator, and their results: frozen values without payload.

Every task can be done again, by another worker, with the same result. A runtime moves these values
between processes or nodes, and reads none of them.
"""

from __future__ import annotations

import logging
from typing import ClassVar

from msgspec import Struct, field

from dsort.containers.base import Container
from dsort.data.json_values import Count
from dsort.data.tally import Tally
from dsort.order.cut import NOT_MEASURED, CutRule, EncodedSizes, OpenShard, Piece
from dsort.order.mixing_counts import MixingGrid, MixingPart
from dsort.pipeline.movement import Movement
from dsort.pipeline.pipeline import Pipeline
from dsort.scratch.logs import ShardCreated
from dsort.storage.network_policy import FetchPolicy
from dsort.storage.routed import BucketPlace
from dsort.storage.small_objects import Staged
from dsort.transforms.outputs import CopyRule

SCHEMA_FILE = "schema.arrow"
"""The schema of the outputs, shared with all nodes."""
READ_SCHEMA_FILE = "read-schema.arrow"
"""The schema that all inputs have to have: that of the first input."""
LONG_COLUMNS_FILE = "long-columns.json"


class CodeShare(Struct, frozen=True):
    """How processes of payload steps share a machine. ``workers``: how many workers have such
    processes; ``gpus``: the GPUs of the machine; None: each worker has GPUs of its own."""

    workers: int = 1
    gpus: tuple[str, ...] | None = None


class Attempt(Struct, frozen=True):
    """One attempt at a job. ``number``: 0 in a dry run. ``first_worker``: the number of the first
    worker; lower numbers belong to workers of earlier attempts, which have left spill files.
    ``scratch_before``: scratch nodes that already have extracted shards."""

    number: int = 0
    first_worker: int = 0
    scratch_before: tuple[str, ...] = ()


class WorkerSetup(Struct, frozen=True):
    """The values that every worker of a job receives once, at its start. ``scratch``: the scratch
    directory; on a cluster, the directory in which each node makes its own. ``log_level``: the
    lowest level of log lines that are sent."""

    job_id: str
    pipeline: Pipeline
    movement: Movement
    inputs: tuple[BucketPlace, ...]
    outputs: tuple[BucketPlace, ...]  # the main one first: see ``storage.routed``
    output_uri: str  # for people, and for `dsort gc`
    root: str
    scratch: str
    attempt: Attempt = Attempt()
    code: CodeShare = field(default_factory=CodeShare)
    fetch: FetchPolicy | None = None  # the files, hosts and addresses that may be used; None: all
    log_level: int = logging.WARNING

    @property
    def seals_later(self) -> bool:
        """Whether creators compute the seals (checksums inside records, see ``Seals``) of converted
        records. Spilled or hashed records need their seals at extraction."""
        is_mapped = self.movement.way.keeps_mappings and not self.pipeline.result.hashes_content
        return is_mapped and self.pipeline.carrier.seals is not None


class Doable(Struct, frozen=True):
    """A task of a worker; ``str`` describes it in a user's words. ``phase``: extract, plan, create
    or seal. The worker keeps freed memory until it gets a task of another phase."""

    phase: ClassVar[str] = "plan"


class Stage(Struct, frozen=True):
    """One pass over all inputs. All tasks of the pass share this value.

    ``name``: the name of the pass and of its index files. ``index`` is the last pass: it writes the
    record index and, with ``spill``, the payload of ``partitions``. ``survey``, ``lots``, ``join``
    and ``drawn`` write an index of one partition, from which a later pass gets its facts. ``count``
    writes nothing: its results are how many records reach the next step that needs positions.

    The other fields are names of shared files with the results of earlier passes; "" for none.
    ``splitters``: where partitions begin; "": hashes, split evenly. ``renames``: new keys of
    records. ``classes``: the records of each class, if the order depends on them. ``left_out``: the
    records and members that a join leaves out, or the records that are equal to others; ``places``:
    the places of the pieces that stay, if an earlier pass finds them. ``borders``: where each
    output begins, if outputs have exact numbers.
    """

    name: str
    partitions: int = 1
    spill: bool = False
    splitters: str = ""
    renames: str = ""
    classes: str = ""
    left_out: str = ""
    places: str = ""
    borders: str = ""

    @property
    def changes_records(self) -> bool:
        """Whether the results of an earlier pass change records, or decide where they go."""
        return any((self.renames, self.classes, self.left_out, self.places, self.borders))


class ExtractTask(Doable, frozen=True):
    """Read one input shard, in the pass ``stage``.

    ``copies``: how often each record comes out; None: once. ``firsts``, ``counts``: for each step
    that needs positions, the number of the first record that reaches the step, and how many records
    reach it; in the stage ``count``, later steps have no values. ``xxh3``: the checksum of the
    shard in the manifest of the job ``written_by``; "" if it is not checked.
    """

    phase = "extract"
    shard: int  # ordinal of the input
    name: str
    size_bytes: int
    etag: str
    stage: Stage
    copies: CopyRule | None = None
    firsts: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()
    xxh3: str = ""
    written_by: str = ""
    next_shard: int = -1  # input shard that the worker fetches meanwhile
    ahead: tuple[int, ...] = ()  # input shards whose headers the worker reads meanwhile

    def __str__(self) -> str:
        return f"extracting shard {self.name}"


class ShardExtracted(Struct, frozen=True):
    """Facts about one extracted shard. A shard that is left out as corrupt has no records.
    ``node``: the node that has its index and spill. The result of an ``ExtractTask``; in the stage
    ``index``, also an event of the job's journal. ``run_begin``, ``run_shards``: the run of shards
    that share one index file, by its first shard and its length; 0 and 0 for a shard with a file of
    its own."""

    shard: Count
    worker: Count
    node: str
    records: Count
    members: Count
    payload_bytes: Count
    stored_bytes: Count
    tally: Tally = field(default_factory=Tally)
    schema: str = ""  # see ``MemberTable.schema``; of the records in their stored form
    transformed: Count = 0  # records that payload steps received, summed over the steps
    run_begin: Count = 0
    run_shards: Count = 0

    @property
    def file(self) -> int:
        """The shard whose index file has the rows of this shard."""
        return self.run_begin if self.run_shards else self.shard


class ExtractRunTask(Doable, frozen=True):
    """Read small input shards together: neighbours in the order of the inputs, all in one pass."""

    phase = "extract"
    shards: tuple[ExtractTask, ...]

    def __str__(self) -> str:
        return f"extracting shard {self.shards[0].name} or one of those after it"


class RunExtracted(Struct, frozen=True):
    """The result of an ``ExtractRunTask``: its shards, in their order."""

    shards: tuple[ShardExtracted, ...]


class KnownKeysTask(Doable, frozen=True):
    """Store the keys of output shards of earlier jobs as ``known-<number>.col`` in scratch.
    ``shards``: of each shard, its name and the number of its container in ``containers``."""

    number: int
    shards: tuple[tuple[str, int], ...]
    containers: tuple[Container, ...]

    def __str__(self) -> str:
        return f"reading the keys of {self.shards[0][0]} and other shards of the result"


class KnownKeysDone(Struct, frozen=True):
    """``node`` has the file of these keys; ``records``: how many were read."""

    number: int
    node: str
    records: int


class Search(Struct, frozen=True):
    """A search for records that repeat an earlier one. ``name``: the name of the files that it
    writes. ``by_content``: records with the same content, rather than the same key, are duplicates.
    ``keep_last``: find all records but the last one, rather than all but the first. ``want_rows``:
    write the positions of the found records to scratch, as ``<name>-<part>``. ``reaction``: the
    kind under which their names are also logged; "": names are not logged. ``without``: the column
    file of positions that do not count, or "". ``known``: (node, numbers of its files) with keys
    that the result already has (``KnownKeysTask``): records with such a key are found, too."""

    name: str
    by_content: bool = False
    keep_last: bool = False
    want_rows: bool = False
    reaction: str = ""
    without: str = ""
    known: tuple[tuple[str, tuple[int, ...]], ...] = ()


class DuplicatesTask(Doable, frozen=True):
    """Do a part of a ``search``: among the hashes ``low <= hash < high`` (high 0: no upper end).
    ``locations``: the shared file with the node of each shard's index."""

    part: int
    low: int
    high: int
    locations: str
    stage: str
    search: Search

    def __str__(self) -> str:
        return "looking for duplicate keys"


class DuplicatesDone(Struct, frozen=True):
    """How many records repeat a key, and the first of these records as (shard, record ordinal,
    key)."""

    part: int
    node: str
    count: int
    samples: tuple[tuple[int, int, bytes], ...]


class OrderTask(Doable, frozen=True):
    """Put one partition's records in output order. ``locations``: as in ``DuplicatesTask``.
    ``drop``: the column file of positions to leave out, or "". In the stage ``join``, only the
    records and members that a join leaves out are stored."""

    partition: int
    locations: str
    drop: str = ""
    stage: str = "index"

    def __str__(self) -> str:
        return f"planning partition {self.partition}"


class JoinFinding(Struct, frozen=True):
    """What a join found in one partition, of one ``kind`` (see ``order.equal_keys``): how many
    records, for which input ("" for none), and the names of the first records."""

    kind: str
    count: int
    input_name: str
    samples: tuple[str, ...]


class JoinDone(Struct, frozen=True):
    """Facts about one joined partition: how many ``pieces`` its records are made of; how many were
    ``left_out``; how many records lose something later (``positions``, in
    ``left-out-<partition>.col``); and the findings."""

    pieces: int = 0
    left_out: int = 0
    positions: int = 0
    found: tuple[JoinFinding, ...] = ()


class OrderDone(Struct, frozen=True):
    """Totals of one ordered partition, and the node that stores it."""

    partition: int
    node: str
    records: int
    dropped: int
    payload_bytes: int
    stored_bytes: int
    by_output: tuple[tuple[int, int, int], ...] = ()
    """(records, payload, stored bytes) of each output, if there are several."""
    join: JoinDone = JoinDone()


class OrderRunTask(Doable, frozen=True):
    """Put some partitions in output order, on one node: each other node receives one request for
    all of them. ``partitions`` differ only in their number."""

    partitions: tuple[OrderTask, ...]

    def __str__(self) -> str:
        return f"planning partition {self.partitions[0].partition} or one of those after it"


class RunOrdered(Struct, frozen=True):
    """The result of an ``OrderRunTask``."""

    partitions: tuple[OrderDone, ...]


class CutTask(Doable, frozen=True):
    """Cut one ordered partition. ``state``: the open shard at the end of the partition before this
    one. ``node``: the node that has the partition; ``mixing``: how to count which records go from
    which input shards to which output shards. ``encoded``, ``stored_before``: see
    ``cut_partition``."""

    partition: int
    node: str
    rule: CutRule
    state: OpenShard
    mixing: MixingGrid
    encoded: EncodedSizes = NOT_MEASURED
    stored_before: int = 0

    def __str__(self) -> str:
        return f"planning partition {self.partition}"


class CutDone(Struct, frozen=True):
    """The pieces of one partition."""

    partition: int
    pieces: list[Piece]
    state: OpenShard
    mixing: MixingPart


class OutputPiece(Struct, frozen=True):
    """Rows of one partition, and their place in an output shard, behind its head.

    All pieces of an output shard are in one task. ``name``: the name that the output shard will
    have. ``last``: the end marker follows.
    """

    token: str
    name: str
    ordinal: int
    shard_bytes: int  # the finished output shard, with its end marker; -1: not known yet
    partition: int  # -1: no rows, in a shard without records
    row_start: int
    row_stop: int
    offset: int
    stored_bytes: int
    last: bool
    output: int = 0  # the number of the output, from 0 on


class PiecesTask(Doable, frozen=True):
    """A task about the ``pieces`` of output shards. ``locations``: as in ``DuplicatesTask``.
    ``nodes``: (partition, node that stores it in output order). ``node``: the node that has most of
    the payload, so a worker there is the best one."""

    phase = "create"
    pieces: tuple[OutputPiece, ...]
    locations: str
    nodes: tuple[tuple[int, str], ...]
    node: str


class MeasureTask(PiecesTask, frozen=True):
    """Encode runs of records as in an output shard, and report only their encoded length. Each run
    has an ``ordinal``, as if it were an output shard."""

    def __str__(self) -> str:
        return "measuring the compressed size of records"


class MeasureDone(Struct, frozen=True):
    """The encoded bytes of each run of a task, in the order of the runs."""

    encoded_bytes: tuple[int, ...]


class CreateTask(PiecesTask, frozen=True):
    """Write output shards: their pieces, shard by shard and in their final order. ``digests``
    (kinds), ``check_content``: make these digests, and check the content of records, while a shard
    is written, if the shard cannot be read back later (``Bucket.seals_on_finish``). ``schema``: of
    all records. ``sidecars``: the kinds whose bytes are stored below ``sidecars_prefix`` of the
    output bucket. ``late_schemas``: the schema of each output that converts records while it writes
    them; "" for other outputs."""

    digests: tuple[str, ...] = ()
    check_content: bool = False
    schema: str = ""
    sidecars: tuple[str, ...] = ()
    sidecars_prefix: str = ""
    late_schemas: tuple[str, ...] = ()

    def __str__(self) -> str:
        ordinals = sorted({piece.ordinal for piece in self.pieces})
        span = f"{ordinals[0]} to {ordinals[-1]}" if len(ordinals) > 1 else str(ordinals[0])
        return f"writing output shards number {span}"


class CreateDone(Struct, frozen=True):
    """All shards of one task."""

    shards: tuple[ShardCreated, ...]
    records: int
    bytes_written: int


class StagedShard(Struct, frozen=True):
    """One written output shard. ``head_bytes``: the bytes before its first record. ``pieces``: the
    rows (partition, start, stop) to check by content; empty if the spec requires no such check.
    ``reread``: check its checksum, too."""

    ordinal: int
    token: str
    shard_bytes: int
    checksum: str
    pieces: tuple[tuple[int, int, int], ...] = ()
    reread: bool = False
    head_bytes: int = 0
    name: str = ""  # once it is published
    output: int = 0  # the number of the output


class SealTask(Doable, frozen=True):
    """Check staged output shards, and make them durable. They are in one task because a file system
    writes many syncs to its journal at once."""

    phase = "seal"
    shards: tuple[StagedShard, ...]
    nodes: tuple[tuple[int, str], ...] = ()
    digests: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"sealing output shards from number {self.shards[0].ordinal} on"


class SealDone(Struct, frozen=True):
    """Output shards that are ready for their names. ``digests``: by ordinal, a text of
    ``FileDigests``, if the task requires some."""

    digests: dict[int, str]


class PublishTask(Doable, frozen=True):
    """Give staged objects of an object store their names."""

    objects: tuple[Staged, ...]

    def __str__(self) -> str:
        return f"publishing {self.objects[0].name} and others"


class PublishDone(Struct, frozen=True):
    """How many objects got their names."""

    count: int


class ScratchLost(Struct, frozen=True):
    """The scratch of a node was lost, with all shards that were extracted there. A task that needed
    the scratch has this result in place of its own. This is also an event of the journal."""

    node: str


Task = (
    ExtractTask
    | ExtractRunTask
    | KnownKeysTask
    | DuplicatesTask
    | OrderTask
    | OrderRunTask
    | CutTask
    | MeasureTask
    | CreateTask
    | SealTask
    | PublishTask
)
TaskDone = (
    ShardExtracted
    | RunExtracted
    | KnownKeysDone
    | DuplicatesDone
    | OrderDone
    | RunOrdered
    | CutDone
    | MeasureDone
    | CreateDone
    | SealDone
    | PublishDone
    | ScratchLost
)
