"""One running job: its spec and pipeline, its buckets and runtime, and what it has found so far.

Each pass over the inputs keeps its findings for later passes. A later attempt of the job uses the
retained files unchanged, because its scratch fits only these files."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

import xxhash
from msgspec import Meta, Struct, field, to_builtins

from dsort.data.json_values import checked
from dsort.data.tally import TallyRow
from dsort.errors import ObjectNotFoundError, StorageError, damaged
from dsort.job.output_names import OutputNames
from dsort.job.setup.collisions import BucketIdentity, InputIdentities, OutputIdentities
from dsort.job.setup.resources import CodeRoom, JobMemory
from dsort.log_lines import about_attempt, logger_of
from dsort.loose_files.bucket import FILES_REF, FilesBucket
from dsort.moves.input_shard import InputShard
from dsort.options import RunOptions
from dsort.order.mixing import Mixing
from dsort.pipeline.movement import NO_MOVEMENT, WAYS, Movement
from dsort.pipeline.pipeline import Pipeline
from dsort.results.journal import Journal, NoJournal
from dsort.results.journal_entries import JournalState
from dsort.results.layout import shared_name
from dsort.results.lease import NO_LEASE, Lease, NoLease
from dsort.results.report import RecordFlow
from dsort.results.reporter import Reporter
from dsort.runtime.base import Runtime
from dsort.spec.model import JobSpec
from dsort.stop_flag import StopFlag
from dsort.storage.bucket import Bucket, ObjectInfo
from dsort.storage.routed import BucketPlace, bucket_named
from dsort.storage.small_objects import parse_json, read_small
from dsort.transforms.base import InputPositions
from dsort.transforms.outputs import CopyRule

if TYPE_CHECKING:
    from dsort.job.streams import Streams
    from dsort.results.manifest import Manifest

RETAINED_BYTES_MAX = 4 << 30

log = logger_of("job")


class Buckets(Struct):
    """The buckets of all inputs as one bucket, the buckets of all outputs as one bucket, and the
    place of each. ``streams``: None if the job has none."""

    inputs: Bucket
    outputs: Bucket
    input_places: tuple[BucketPlace, ...]
    output_places: tuple[BucketPlace, ...]
    streams: Streams | None = None

    @property
    def some_seal_on_finish(self) -> bool:
        """Whether some output shards cannot be read back once they are staged."""
        named = (bucket_named(self.outputs, place.name) for place in self.output_places)
        return any(bucket.seals_on_finish for bucket in named)

    @property
    def identities(self) -> tuple[InputIdentities, OutputIdentities]:
        """The identities of the input buckets and of the output buckets."""
        targets = {
            place.name: BucketIdentity(bucket_named(self.outputs, place.name), place.ref)
            for place in self.output_places
        }
        if isinstance(self.inputs, FilesBucket):
            sources = {"": BucketIdentity(self.inputs, FILES_REF)}
        else:
            sources = {
                place.name: BucketIdentity(bucket_named(self.inputs, place.name), place.ref)
                for place in self.input_places
            }
        return InputIdentities(sources), OutputIdentities(targets)


class JobAttempt(Struct):
    """The state and the files that attempts of a job leave for later attempts. ``before``: the
    state that earlier attempts left, empty in the first one. ``lease``, ``journal``: objects that
    do nothing, until the attempt begins; in a dry run it never begins. ``digests``: XXH3-128 of the
    files that were given to all nodes."""

    bucket: Bucket
    job_id: str
    runtime: Runtime
    before: JournalState = field(default_factory=JournalState)
    lease: Lease | NoLease = NO_LEASE
    journal: Journal | NoJournal = field(default_factory=NoJournal)
    digests: dict[str, str] = field(default_factory=dict)

    @property
    def is_resumed(self) -> bool:
        """Whether there were earlier attempts."""
        return bool(self.before.accepted)

    @property
    def was_committing(self) -> bool:
        """Whether an earlier attempt had begun to give output shards their names."""
        return self.before.committing

    @property
    def has_begun(self) -> bool:
        """Whether the attempt may store anything; a dry run may not."""
        return self.lease.attempt > 0

    def retain(self, name: str, data: bytes) -> None:
        """Store a file for later attempts."""
        if self.has_begun:
            self.bucket.write(shared_name(self.job_id, name), data)

    def retain_on_nodes(self, name: str, data: bytes) -> None:
        """Give a file to all nodes, and store it for later attempts, because all attempts have to
        use the same file."""
        self.retain(name, data)
        self.share(name, data)

    def share(self, name: str, data: bytes) -> None:
        """Give a file that is stored for later attempts to all nodes."""
        self.digests[name] = xxhash.xxh3_128_hexdigest(data)
        self.runtime.share(name, data)

    def shared(self, name: str) -> str:
        """``name`` if all nodes have this file, else ""."""
        return name if name in self.digests else ""

    def retained(self, name: str) -> bytes:
        """The file that an earlier attempt retained as ``name``; b"" if there is none. No retained
        file is empty."""
        if not self.is_resumed:
            return b""
        try:
            place = shared_name(self.job_id, name)
            return read_small(self.bucket, place, bytes_max=RETAINED_BYTES_MAX)
        except ObjectNotFoundError:
            return b""


class Resolved(Struct):
    """Facts that were found together with the inputs: counts, names by kind, digests of the key map
    and of the files that steps read, and the option ``move``."""

    tally: list[TallyRow]
    keymap: str
    steps: str
    named: dict[str, list[str]]
    move: Annotated[str, Meta(pattern=rf"\A(auto|{'|'.join(WAYS)})\Z")]


class Found(Struct):
    """Facts that are found before records are read. ``base``: the result that the job amends, empty
    if it amends none; ``known_keys``: the nodes that have read the keys of that result, by part.
    ``resolved``: for later attempts. ``input_checksums``: by ordinal of the input, (XXH3, the job
    that wrote the input), if content has to be verified. ``scratch``: the directory that workers
    write to, "" until they are set up."""

    base: Manifest
    memory: JobMemory
    code_room: CodeRoom = field(default_factory=CodeRoom)
    movement: Movement = NO_MOVEMENT
    known_keys: dict[int, str] = field(default_factory=dict)
    resolved: Resolved = field(default_factory=lambda: Resolved([], "", "", {}, "auto"))
    input_checksums: dict[int, tuple[str, str]] = field(default_factory=dict)
    scratch: str = ""


class Outcome(Struct):
    """Facts about the outputs of the job. ``planned_names``: the names of the output shards, once
    they are known. ``naming``: by token, (name, receipt) of objects that may already have their
    names. ``stale``: the objects to remove after the commit, as they were when they were found (see
    ``stale_outputs``). ``input_records``: by ordinal of the input. ``mixing``: None until there is
    a plan. ``reactions_file``, ``rejects_file``: "" if there are no such files."""

    names: OutputNames
    planned_names: Sequence[str] = field(default_factory=list)
    naming: MutableMapping[str, tuple[str, str]] = field(default_factory=dict)
    stale: list[ObjectInfo] = field(default_factory=list)
    input_records: dict[int, int] = field(default_factory=dict)
    mixing: Mixing | None = None
    flow: RecordFlow = field(default_factory=RecordFlow)
    reactions_file: str = ""
    rejects_file: str = ""


class Job(Struct):
    """One job while it runs."""

    job_id: str
    spec: JobSpec
    options: RunOptions
    pipeline: Pipeline
    buckets: Buckets
    runtime: Runtime
    stop: StopFlag
    reporter: Reporter
    attempt: JobAttempt
    found: Found
    outcome: Outcome
    inputs: list[InputShard] = field(default_factory=list)

    def output_of(self, group: int) -> int:
        """The output to which ``group``, a group of the order, belongs. 0 if there is one output:
        then each of its templates is a group."""
        return group if self.spec.outputs else 0

    @property
    def overwrite(self) -> bool:
        """Whether output shards may replace objects that have their names."""
        given = self.options.overwrite
        return given if given is not None else self.spec.overwrite

    @property
    def amends(self) -> bool:
        """Whether the job amends a result, and has found it."""
        return bool(self.found.base.job_id)

    @property
    def appends(self) -> bool:
        """Whether the job adds records to a result."""
        return bool(self.spec.amend and self.spec.amend.by == "append")

    @property
    def replaces_inputs(self) -> bool:
        """Whether output shards take the place of the input shards that they are made of."""
        return bool(self.spec.amend and self.spec.amend.by == "remove")

    @property
    def extractors_max(self) -> int | None:
        """How many workers may extract at the same time; None: all."""
        steps = self.pipeline.code_steps.values()
        limits: list[int | None] = [step.limits.processes for step in steps]
        limits += [self.spec.extract_concurrency_max_limit, self.found.code_room.workers_max]
        return min((limit for limit in limits if limit), default=None)

    @property
    def creators_max(self) -> int | None:
        """How many workers may create at the same time; None: all."""
        return self.spec.create_concurrency_max_limit or None

    def begin_attempt(self, number: int) -> None:
        """Take the job's lease and open its journal. From then on this process runs the job and
        cleans up after it."""
        is_warned = False

        def waiting(why: str) -> None:
            nonlocal is_warned
            self.stop.raise_if_requested()
            if not is_warned:
                is_warned = True
                self.reporter.warn("clocks", why)

        bucket = self.buckets.outputs
        lease = Lease.take(bucket, self.job_id, attempt=number, waiting=waiting)
        self.attempt.lease = lease
        lease.keep(
            on_lost=lambda why: self._stop_for(f"the loss of its lease: {why}"),
            on_stop=lambda: self._stop_for("`dsort stop`", discards=True),
        )
        about_attempt(number)
        self.attempt.journal = Journal(bucket, self.job_id, number)

    def _stop_for(self, why: str, *, discards: bool = False) -> None:
        """End the job; may be called from any thread. ``discards``: see ``StopFlag.request``."""
        log.debug("the job is asked to stop: %s", why)
        self.stop.request(signal.SIGTERM, why, discards=discards)


Value = TypeVar("Value")
Stored = TypeVar("Stored")


class Facts(Struct, frozen=True):
    """The facts that the surveys of a job have found. ``copies``: the rule of each input shard;
    empty: each record is output once. The other fields name files that workers read (see
    ``Stage``), "" if nothing had to be found."""

    positions: InputPositions = InputPositions()
    copies: Sequence[CopyRule] = ()
    left_out: str = ""
    places: str = ""
    borders: str = ""
    splitters: str = ""
    renames: str = ""
    classes: str = ""


class _Kept(Struct):
    """``files``: XXH3-128 of the shared files, by name."""

    value: Any
    files: dict[str, str]


class Fact(Struct, Generic[Value], frozen=True):
    """A value that the first attempt finds and later ones use: JSON of a ``kind`` in the file
    ``name``, and shared files. ``dump`` and ``parse`` convert the value; ``parse`` raises
    ``ValueError`` or a similar error for a value that does not fit the job. ``checks``: for each
    file of the value, a function that checks the bytes of the file; its second argument is the
    file's name, for errors. ``may_lack_files``: whether the value may be without some of these
    files."""

    name: str
    kind: Any
    parse: Callable[[Any], Value] = lambda stored: stored
    dump: Callable[[Value], object] = lambda value: value
    checks: Mapping[str, Callable[[bytes, str], object]] = field(default_factory=dict)
    may_lack_files: bool = False

    def settle(self, job: Job, find: Callable[[], Value]) -> Value:
        """The value that an earlier attempt found, else the value that ``find`` finds now."""
        kept = self.before(job)
        return kept[0] if kept else self.keep(job, find())

    def keep(self, job: Job, value: Value) -> Value:
        """Store ``value`` for later attempts, after its files were given to all nodes."""
        shared = job.attempt.digests
        files = {name: shared[name] for name in self.checks if name in shared}
        kept = to_builtins(_Kept(self.dump(value), files))
        job.attempt.retain(self.name, json.dumps(kept).encode())
        return value

    def before(self, job: Job) -> tuple[Value] | tuple[()]:
        """The value that an earlier attempt kept, after its files were given to all nodes; () if
        there is no value, or a file of it is missing. ``StorageError`` if the kept value is
        damaged: others may have written it."""
        data = job.attempt.retained(self.name)
        if not data:
            return ()
        what = f"{self.name} of job {job.job_id}"
        kept = parse_kept(data, what, _Kept)
        missing = self.checks.keys() - kept.files.keys()
        if not kept.files.keys() <= self.checks.keys() or (missing and not self.may_lack_files):
            raise damaged(what, "it names other files than a survey makes")
        with refuse_damage_in(what):
            value = self.parse(checked(kept.value, self.kind))
        files = {name: job.attempt.retained(name) for name in kept.files}
        if not all(files.values()):
            return ()
        for name, content in files.items():
            self._check(name, content, kept.files[name], f"{name} of job {job.job_id}")
        for name, content in files.items():
            job.attempt.share(name, content)
        return (value,)

    def _check(self, name: str, data: bytes, digest: str, what: str) -> None:
        """``StorageError`` for a file that workers cannot use, or that has changed: shards that are
        extracted with the changed file would not fit the shards that were extracted before."""
        if digest != xxhash.xxh3_128_hexdigest(data):
            raise StorageError(
                f"{what} was changed since the job wrote it",
                hint="the job cannot be resumed; start it again",
            )
        self.checks[name](data, what)


def parse_kept(data: bytes, what: str, kind: type[Stored]) -> Stored:
    """The JSON of a file that an attempt has kept, as a ``kind``. ``StorageError`` if it is
    damaged: the job cannot be resumed."""
    content = parse_json(data, what)
    with refuse_damage_in(what):
        return checked(content, kind)


@contextlib.contextmanager
def refuse_damage_in(what: str) -> Iterator[None]:
    """A context in which ``what`` is parsed. Errors in it become ``StorageError``, because others
    may have written ``what``."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise damaged(what, str(error).partition("\n")[0]) from None
