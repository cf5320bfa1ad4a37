"""What the coordinator asks of workers, and what they answer: small frozen values, no payload.

Every task can be done again, by another worker, with the same result. A runtime moves these
between processes or nodes; it looks into none of them.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from dsort.containers.base import Container
from dsort.data.shares import CopyRule
from dsort.data.tally import Tally
from dsort.order.cut import CutRule, EncodedSizes, OpenShard, Piece
from dsort.order.mixing_counts import MixingGrid, MixingPart
from dsort.pipeline.movement import Movement
from dsort.pipeline.pipeline import Pipeline
from dsort.scratch.logs import ShardCreated
from dsort.storage.network_policy import FetchPolicy
from dsort.storage.several import BucketPlace
from dsort.storage.staging import Staged

SCHEMA_FILE = "schema.arrow"
"""The schema of the outputs, shared with all nodes."""
READ_SCHEMA_FILE = "read-schema.arrow"
"""The schema that all inputs have, which is that of the first one."""
LONG_COLUMNS_FILE = "long-columns.json"


@dataclass(frozen=True, slots=True)
class CodeShare:
    """What the processes of payload steps share. ``workers``: how many workers have such processes;
    ``gpus``: of the machine; None: each worker has its own."""

    workers: int = 1
    gpus: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at a job. ``number``: 0 in a dry run. ``first_worker``: workers are numbered from
    here on, for those of earlier attempts have left spill files behind. ``scratch_before``: scratch
    nodes with shards that are extracted already."""

    number: int = 0
    first_worker: int = 0
    scratch_before: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """What every worker of a job gets once, at its start.

    ``scratch``: the scratch directory; on a cluster, the directory that each node makes its own in.
    ``log_level``: from which level on log lines are wanted.
    """

    job_id: str
    pipeline: Pipeline
    movement: Movement
    inputs: tuple[BucketPlace, ...]
    outputs: tuple[BucketPlace, ...]  # the main one first: see ``storage.output_buckets``
    output_uri: str  # for people, and for `dsort gc`
    root: str
    scratch: str
    attempt: Attempt = Attempt()
    code: CodeShare = field(default_factory=CodeShare)
    fetch: FetchPolicy | None = None  # where files of buckets may really be; None: anywhere
    log_level: int = logging.WARNING

    @property
    def seals_later(self) -> bool:
        """Whether creators make the seals of converted records. What is spilled is whole, and so is
        what is hashed."""
        is_mapped = self.movement.way.keeps_mappings and not self.pipeline.hashes_content
        return is_mapped and self.pipeline.carrier.seal_bytes > 0


@dataclass(frozen=True, slots=True)
class Stage:
    """One pass over all inputs, whose tasks have it in common.

    ``name``: of its index files. ``index`` is the last pass: it writes the record index and, with
    ``spill``, the payload of ``partitions``. ``survey``, ``lots``, ``join`` and ``drawn`` write an
    index of one partition, which is asked what a later pass has to know. ``count`` writes nothing:
    its answers say how many records come to the next step that asks for positions.

    The others name shared files with what earlier passes have found; "" for none. ``splitters``:
    where partitions begin; "": hashes, split evenly. ``renames``: new keys of records. ``classes``:
    the records of each class, where the order needs it. ``left_out``: what a join leaves out;
    ``places``: of the pieces that stay, where that is found first. ``borders``: where each output
    begins, where exact numbers are dealt out.
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
        """Whether an earlier pass has found what changes records, or where they go."""
        named = (self.renames, self.classes, self.left_out, self.places, self.borders)
        return any(named)


class Doable:
    """What a worker is asked to do; ``str``: in a user's words. ``phase``: what the worker keeps
    memory for meanwhile: extract, plan, create or seal."""

    __slots__ = ()
    phase: ClassVar[str] = "plan"


@dataclass(frozen=True, slots=True)
class ExtractTask(Doable):
    """Read one input shard, as its stage says.

    ``copies``: None: each record comes out once. ``firsts``, ``counts``: for each step that asks
    for positions, the number of the first record that comes to it and how many do; at the stage
    ``count`` some are missing. ``xxh3``: of the shard, as the job ``written_by`` has it in its
    manifest; "" if it is not to be checked.
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
    next_shard: int = -1  # input shard that the worker is to fetch meanwhile
    ahead: tuple[int, ...] = ()  # input shards whose headers the worker is to read meanwhile

    def __str__(self) -> str:
        return f"extracting shard {self.name}"


@dataclass(frozen=True, slots=True)
class ExtractRunTask(Doable):
    """Read a run of small input shards, one after the other in input order, in one go. ``shards``
    differ in no more than what they say of their shard."""

    phase = "extract"
    shards: tuple[ExtractTask, ...]

    def __str__(self) -> str:
        return f"extracting shard {self.shards[0].name} or one of those after it"


@dataclass(frozen=True, slots=True)
class ShardExtracted:
    """Facts about one extracted shard; one left out as corrupt has no records. ``node``: where its
    index and spill are. The answer to an ``ExtractTask``; those of the stage ``index`` are events
    of the job's journal, too. ``run_begin``, ``run_shards``: the first of so many shards, one after
    the other, that have one index file; of a shard that has its own, 0 and 0."""

    shard: int
    worker: int
    node: str
    records: int
    members: int
    payload_bytes: int
    stored_bytes: int
    tally: Tally = field(default_factory=Tally)
    schema: str = ""  # see ``MemberTable.schema``; of the records as they are stored
    transformed: int = 0  # records that steps on payload were given, each step by itself
    run_begin: int = 0
    run_shards: int = 0

    @property
    def file(self) -> int:
        """The shard whose index file has its rows."""
        return self.run_begin if self.run_shards else self.shard


@dataclass(frozen=True, slots=True)
class RunExtracted:
    """The answer to an ``ExtractRunTask``: its shards, in their order."""

    shards: tuple[ShardExtracted, ...]


@dataclass(frozen=True, slots=True)
class DuplicatesTask(Doable):
    """Find duplicate keys among the hashes ``low <= hash < high`` (high 0: no upper end).

    ``locations``: the shared file that says which node has each shard's index. ``want_rows``: write
    the positions of the later records to scratch, as ``<name>-<part>``. ``reaction``: the kind
    under which their names are logged as well; "": they are not. ``by_content``: records with the
    same content, and not the same key, are duplicates. ``keep_last``: those before the last one
    are found, and not those behind the first. ``drop``: the column file of positions that do not
    count, or "". ``known``: (node, numbers of its files) with keys that a result has by now
    (``KnownKeysTask``): records that have one are found, too.
    """

    part: int
    low: int
    high: int
    locations: str
    stage: str
    want_rows: bool
    reaction: str = ""
    name: str = "duplicates"
    by_content: bool = False
    keep_last: bool = False
    drop: str = ""
    known: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def __str__(self) -> str:
        return "looking for duplicate keys"


@dataclass(frozen=True, slots=True)
class KnownKeysTask(Doable):
    """Read the keys of some output shards of earlier jobs, and store them in the scratch of the
    node, as ``known-<number>.col``. ``shards``: the name of each, and its number in
    ``containers``."""

    number: int
    shards: tuple[tuple[str, int], ...]
    containers: tuple[Container, ...]

    def __str__(self) -> str:
        return f"reading the keys of {self.shards[0][0]} and other shards of the result"


@dataclass(frozen=True, slots=True)
class KnownKeysDone:
    """Where they are; ``records``: how many have been read."""

    number: int
    node: str
    records: int


@dataclass(frozen=True, slots=True)
class DuplicatesDone:
    """How many records repeat a key, and the first of them: (shard, record ordinal, key)."""

    part: int
    node: str
    count: int
    samples: tuple[tuple[int, int, bytes], ...]


@dataclass(frozen=True, slots=True)
class OrderTask(Doable):
    """Put one partition's records in output order. ``locations``: as for duplicates. ``drop``: the
    column file of positions to leave out, or "". At the stage ``join`` nothing is stored but what a
    join leaves out."""

    partition: int
    locations: str
    drop: str = ""
    stage: str = "index"

    def __str__(self) -> str:
        return f"planning partition {self.partition}"


@dataclass(frozen=True, slots=True)
class OrderRunTask(Doable):
    """Put some partitions in output order, all of them on one node: other nodes are asked once.
    ``partitions`` differ in no more than which one each is of."""

    partitions: tuple[OrderTask, ...]

    def __str__(self) -> str:
        return f"planning partition {self.partitions[0].partition} or one of those after it"


@dataclass(frozen=True, slots=True)
class JoinFinding:
    """What a join found in one partition: ``kind`` (see ``order.joining``), how many, which input
    it is about ("" if none), and the names of the first records."""

    kind: str
    count: int
    input_name: str
    samples: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JoinDone:
    """Of one partition: how many pieces its records are made of, how many were left out, of how
    many something is to be left out later (``left-out-<partition>.col``), and what was found."""

    pieces: int
    left_out: int = 0
    positions: int = 0
    found: tuple[JoinFinding, ...] = ()


@dataclass(frozen=True, slots=True)
class OrderDone:
    """Totals of one ordered partition, and the node that has it."""

    partition: int
    node: str
    records: int
    dropped: int
    payload_bytes: int
    stored_bytes: int
    by_output: tuple[tuple[int, int, int], ...] = ()
    """(records, payload, stored bytes) of each output, where there are several."""
    join: JoinDone | None = None


@dataclass(frozen=True, slots=True)
class RunOrdered:
    """The answer to an ``OrderRunTask``."""

    partitions: tuple[OrderDone, ...]


@dataclass(frozen=True, slots=True)
class CutTask(Doable):
    """Cut one ordered partition; ``state`` is where the partition before it ended. ``node``: where
    it is; ``mixing``: how to count where its records come from and go to. ``encoded``,
    ``stored_before``: see ``cut_partition``."""

    partition: int
    node: str
    rule: CutRule
    state: OpenShard
    mixing: MixingGrid
    encoded: EncodedSizes | None = None
    stored_before: int = 0

    def __str__(self) -> str:
        return f"planning partition {self.partition}"


@dataclass(frozen=True, slots=True)
class CutDone:
    """The pieces of one partition."""

    partition: int
    pieces: list[Piece]
    state: OpenShard
    mixing: MixingPart


@dataclass(frozen=True, slots=True)
class MeasureTask(Doable):
    """Encode runs of records as they would be in an output shard, and say only how long they get.

    ``pieces``: of each run (``ordinal``), as of output shards. The rest is as for ``CreateTask``.
    """

    phase = "create"
    pieces: tuple[OutputPiece, ...]
    locations: str
    nodes: tuple[tuple[int, str], ...]
    node: str

    def __str__(self) -> str:
        return "measuring what records come to once they are compressed"


@dataclass(frozen=True, slots=True)
class MeasureDone:
    """The encoded bytes of each run of a task, in their order."""

    encoded_bytes: tuple[int, ...]


class OutputPiece(NamedTuple):
    """Rows of one partition, and where in which output shard they go, behind its head.

    All pieces of an output shard are in one task. ``name``: of the output shard, when it is
    published. ``last``: the end marker follows.
    """

    token: str
    name: str
    ordinal: int
    shard_bytes: int  # the finished output shard, with its end marker; -1: not known yet
    partition: int  # -1: no rows, a shard without records
    row_start: int
    row_stop: int
    offset: int
    stored_bytes: int
    last: bool
    output: int = 0  # of several: which one, from 0 on


@dataclass(frozen=True, slots=True)
class CreateTask(Doable):
    """Write output shards: their pieces, shard by shard and in their final order.

    ``nodes``: (partition, node that has it in order). ``node``: the one that has most of it: a
    worker there is the best one. ``want_md5``, ``check_content``: while the shard is written,
    where it cannot be read back later (see ``Bucket.seals_on_finish``). ``schema``: of all records.
    ``sidecars``: the kinds whose bytes are stored below ``sidecars_prefix`` of the output bucket.
    ``late_schemas``: by output, of records that are converted as they are written; "" of others.
    """

    phase = "create"
    pieces: tuple[OutputPiece, ...]
    locations: str
    nodes: tuple[tuple[int, str], ...]
    node: str
    want_md5: bool = False
    check_content: bool = False
    schema: str = ""
    sidecars: tuple[str, ...] = ()
    sidecars_prefix: str = ""
    late_schemas: tuple[str, ...] = ()

    def __str__(self) -> str:
        ordinals = sorted({piece.ordinal for piece in self.pieces})
        span = f"{ordinals[0]} to {ordinals[-1]}" if len(ordinals) > 1 else str(ordinals[0])
        return f"writing output shards number {span}"


@dataclass(frozen=True, slots=True)
class CreateDone:
    """The shards of one task, all of them."""

    shards: tuple[ShardCreated, ...]
    records: int
    bytes_written: int


class StagedShard(NamedTuple):
    """One output shard that is written; ``head_bytes`` stand before its first record.
    ``pieces``: the rows (partition, start, stop) whose content is to be checked; none where the
    spec does not ask for it. ``reread``: check its checksum,
    too."""

    ordinal: int
    token: str
    shard_bytes: int
    checksum: str
    pieces: tuple[tuple[int, int, int], ...] = ()
    reread: bool = False
    head_bytes: int = 0
    name: str = ""  # that it is going to have
    output: int = 0  # of several: which one


@dataclass(frozen=True, slots=True)
class SealTask(Doable):
    """Check staged output shards, and make them durable: together, for a file system writes many
    syncs to its journal at once."""

    phase = "seal"
    shards: tuple[StagedShard, ...]
    nodes: tuple[tuple[int, str], ...] = ()
    want_md5: bool = False

    def __str__(self) -> str:
        return f"sealing output shards from number {self.shards[0].ordinal} on"


@dataclass(frozen=True, slots=True)
class SealDone:
    """Output shards that are ready to be given their names; their MD5 by ordinal, if wanted."""

    md5: dict[int, str]


@dataclass(frozen=True, slots=True)
class PublishTask(Doable):
    """Give staged objects of an object store their names."""

    objects: tuple[Staged, ...]

    def __str__(self) -> str:
        return f"publishing {self.objects[0].name} and others"


@dataclass(frozen=True, slots=True)
class PublishDone:
    """So many objects have their names."""

    count: int


@dataclass(frozen=True, slots=True)
class ScratchLost:
    """Scratch is gone with its node, and all that was extracted there. In place of any answer of a
    task that needed it, and an event of the journal."""

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
