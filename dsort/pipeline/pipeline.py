"""``Pipeline``: how a job reads, changes, orders and writes its records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Literal, cast

from msgspec import Struct
from msgspec.structs import replace

from dsort.containers.base import Container
from dsort.containers.codecs.base import Codec
from dsort.containers.codecs.decoding import DecodingRules
from dsort.order.base import Algorithm, GivenPlaces
from dsort.order.equal_keys import JoinRule
from dsort.spec.target import Target
from dsort.storage.routed import input_of
from dsort.transforms.base import Step
from dsort.transforms.outputs import Division

if TYPE_CHECKING:
    from dsort.expressions.expression import Expression
    from dsort.transforms.payload import PayloadStep


class Policies(Struct, frozen=True):
    """The reactions in the spec to each kind of oddity of the inputs."""

    duplicated_records: str | None  # abort; ignore | warn: the last one is kept; None: all are kept
    corrupt_shards: str  # abort | skip
    stray_members: str  # keep | drop | abort
    ekm_missing_key: str  # ignore | warn | abort
    unsafe_names: str = "warn"  # warn | rename | abort
    incomplete_shards: str = "abort"  # abort | warn | ignore
    concatenated_shards: str = "read"  # read | abort
    records_only: bool = False  # members that readers of samples skip are refused (index: wids)
    duplicate_keys: str = "warn"  # ignore | warn | abort | drop | rename


class StepFailures(Struct, frozen=True):
    """The fate of records at which a payload step fails (see ``dsort.spec.transform``)."""

    on_error: str = "fail"  # fail | skip | keep | skip_shard | stop
    rejects: str = ""  # "" | keys | payload: the parts of such records that are kept
    max_errors: int | str | None = None  # a number of records, or a part of all, as "0.1%"

    def errors_max(self, records: int) -> int | None:
        """How many of ``records`` may fail; None: all."""
        if not isinstance(self.max_errors, str):
            return self.max_errors
        return int(Fraction(self.max_errors.removesuffix("%")) / 100 * records)


class Reading(Struct, frozen=True):
    """How input shards are read. ``names``: the names of the inputs; ``containers``: the container
    of each input, or a single one for all; ``container``: the container of a single input.
    ``makes_shards``: the inputs are loose files, from which shards are made while they are read.
    ``key_field``: the place of the key in a record; "" if the container or a number gives the
    key."""

    names: tuple[str, ...]
    container: Container
    containers: tuple[Container, ...]
    decoding: DecodingRules
    policies: Policies
    makes_shards: bool = False
    key_field: str = ""

    @property
    def codec(self) -> Codec | None:
        """The codec of shards whose names do not show their codec."""
        return self.decoding.codec

    def container_of(self, shard: str) -> Container:
        """The container of an input shard, by its name in the job."""
        if len(self.containers) == 1:
            return self.containers[0]
        return self.containers[self.names.index(input_of(shard, self.names))]

    def with_schema(self, schema: str) -> Reading:
        """These rules, for shards that all have the schema of the first one."""
        container = self.container.with_schema(schema)
        if len(self.containers) > 1:
            return replace(self, container=container)
        return replace(self, container=container, containers=(container,))


class Deduplication(Struct, frozen=True):
    """Which one of several equal records stays; false if all stay. ``extensions``: those of the
    members whose content is compared; empty: all members are compared."""

    by: Literal["", "key", "content", "field"] = ""
    keeps_last: bool = False
    extensions: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.by)

    @property
    def columns(self) -> tuple[str, ...]:
        """The extensions, with their dots, of the members that a field is read from."""
        return ()


class DeduplicationByField(Deduplication, frozen=True, kw_only=True):
    """Deduplication of records that are compared by a field, ``value``."""

    value: Expression

    @property
    def columns(self) -> tuple[str, ...]:
        """The extensions, with their dots, of the members that the field is read from."""
        return tuple(f".{name}" for name in self.value.extensions)


class Mix(Struct, frozen=True):
    """How many records of each input are output, by the numbers of the inputs. ``weights``: how
    many times a record is used; ``records``: exact numbers of records. ``total``: the number of
    records from all inputs together; ``stop``: without a ``total``, whether the first or the last
    input that is used up ends the mix."""

    names: tuple[str, ...]
    weights: tuple[Fraction, ...]
    records: tuple[int | None, ...]
    total: int | None = None
    stop: Literal["first_exhausted", "all_exhausted"] | None = None
    replacement: bool = False
    seed: str = "0"

    @property
    def is_counted(self) -> bool:
        """Whether the choice of records needs the number of records of each input."""
        exact = any(each is not None for each in self.records)
        return exact or self.total is not None or self.stop is not None


class OutputForm(Struct, frozen=True):
    """How the shards of one output are written. ``is_late``: records are converted to the container
    while they are written."""

    container: Container
    target: Target
    is_late: bool = False

    @property
    def codec(self) -> Codec | None:
        """The codec around the shards."""
        return self.target.codec

    @property
    def level(self) -> int:
        """The compression level of the codec; 0 without a codec."""
        return self.target.codec_level

    @property
    def is_measured(self) -> bool:
        """Whether the limit of shards is the size of their encoded files. If so, records are
        encoded once before the shards are cut."""
        return self.target.is_measured


class ResultRules(Struct, frozen=True):
    """What the spec wants of the result as a whole. ``checks_content``: records are compared by
    their content before the commit; ``keeps_shards``: each input shard becomes one output shard;
    ``equalizes``: all shards get the same number of records. ``sidecars``: the kinds of
    files beside the shards. ``lineage``: the form of the file that lists where each record was and
    is; None: no such file. ``way``: the name of the only movement that can make the result; "" if
    any can. ``checksums``: the digests of each shard beside XXH3."""

    checks_content: bool = False
    keeps_shards: bool = False
    equalizes: bool = False
    sidecars: tuple[str, ...] = ()
    lineage: Literal["parquet", "jsonl"] | None = None
    way: str = ""
    checksums: tuple[Literal["sha256"], ...] = ()

    @property
    def digests(self) -> tuple[str, ...]:
        """The kinds of ``FileDigests`` to make of each output shard."""
        return ("md5", *self.checksums) if "wids" in self.sidecars else self.checksums

    @property
    def keeps_lineage(self) -> bool:
        """Whether a file lists the origin of each record."""
        return self.lineage is not None

    @property
    def keeps_origins(self) -> bool:
        """Whether the index has the key and the origin of each record until the end."""
        return self.keeps_lineage or bool(self.way)

    @property
    def hashes_content(self) -> bool:
        """Whether the index has the XXH3 of each record's stored form."""
        return self.checks_content or self.keeps_lineage


class Pipeline(Struct, frozen=True, dict=True):
    """What a job does to its records. ``carrier``: the container in which records travel, and in
    which outputs without another container are written. ``outputs``: the only output, or each of
    several. ``division``: how records are distributed over several outputs; false for one
    output. ``placed_by``: the key map, or the other result, that gives records their places."""

    reading: Reading
    steps: tuple[Step, ...]
    failures: StepFailures
    placed_by: GivenPlaces
    deduplication: Deduplication
    mix: Mix | None
    algorithm: Algorithm
    join: JoinRule
    division: Division
    carrier: Container
    outputs: tuple[OutputForm, ...]
    result: ResultRules

    @property
    def targets(self) -> tuple[Target, ...]:
        """The outputs as the spec names them."""
        return tuple(each.target for each in self.outputs)

    @property
    def all_containers(self) -> tuple[Container, ...]:
        """The containers that the job reads and writes."""
        written = (each.container for each in self.outputs)
        return (*self.reading.containers, self.carrier, *written)

    @property
    def output_names(self) -> tuple[str, ...]:
        """The names of several outputs; empty for a single one."""
        return self.division.names

    @property
    def compared(self) -> Deduplication:
        """The content or the field by which records are compared; false: records are compared by
        their keys alone."""
        return Deduplication() if self.drops_same_keys else self.deduplication

    @property
    def drops_same_keys(self) -> bool:
        """Whether ``deduplication`` leaves one record of each key."""
        return self.deduplication.by == "key"

    @property
    def deduplicates_first(self) -> bool:
        """Whether equal records are left out before a mix weighs the others."""
        return self.mix is not None and bool(self.deduplication)

    @property
    def is_spread_evenly(self) -> bool:
        """Whether hashes of keys spread records evenly over partitions."""
        return self.algorithm.is_spread_evenly and not self.placed_by.templates

    @cached_property
    def code_steps(self) -> Mapping[int, PayloadStep]:
        """The steps that run a user's code, by their numbers."""
        # Few jobs have such steps, so other jobs do not load the class of these steps.
        return {
            number: cast("PayloadStep", step)
            for number, step in enumerate(self.steps)
            if step.needs == "payload"
        }

    @cached_property
    def makes_records(self) -> bool:
        """Whether some step makes new records; their members have new headers, as after a
        conversion."""
        return bool(self.code_steps)

    @property
    def member_defaults(self) -> Sequence[tuple[str, bytes]]:
        """The members that the container of the outputs adds to records that lack them."""
        return self.carrier.member_defaults

    @property
    def reads_rows(self) -> bool:
        """Whether inputs are tables."""
        return self.reading.container.is_columnar

    @property
    def moves_rows(self) -> bool:
        """Whether rows of tables stay rows from inputs to outputs."""
        return self.reads_rows and self.carrier.is_columnar

    @cached_property
    def writes_rows(self) -> bool:
        """Whether the shards of some output are tables."""
        return any(each.container.is_columnar for each in self.outputs)

    @cached_property
    def has_late_outputs(self) -> bool:
        """Whether the records of some output are converted while they are written."""
        return any(each.is_late for each in self.outputs)

    @cached_property
    def measures_encoded(self) -> bool:
        """Whether the size of encoded files limits the shards of some output."""
        return any(each.is_measured for each in self.outputs)

    @cached_property
    def encodes(self) -> bool:
        """Whether some output is compressed by a codec."""
        return any(each.codec is not None for each in self.outputs)

    def converts(self, shard: str) -> bool:
        """Whether records of an input shard are converted while they are read."""
        return self.reading.container_of(shard) != self.carrier

    def output(self, group: int) -> OutputForm:
        """The output to which a group of the order belongs. With a key map, one output has several
        groups."""
        return self.outputs[group if self.division else 0]

    def with_schema(self, schema: str) -> Pipeline:
        """The same pipeline, once the schema of the inputs is known. Converted records, and records
        that steps make, have a different schema, which depends on their content."""
        reading, carrier = self.reading.with_schema(schema), self.carrier
        if self.makes_records or carrier != self.reading.container:
            return replace(self, reading=reading)
        known = carrier.with_schema(schema)
        outputs = tuple(
            replace(each, container=known) if each.container == carrier else each
            for each in self.outputs
        )
        return replace(self, reading=reading, carrier=known, outputs=outputs)
