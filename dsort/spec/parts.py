"""The fields of a spec and its parts, with their meanings and defaults."""

# No `from __future__ import annotations`: pydantic would compile each annotation of a model again.
from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from msgspec.structs import replace
from pydantic import AfterValidator, Field

from dsort.containers.codecs.decoding import EXPANSION_MAX_DEFAULT
from dsort.naming.templates import SPLIT_FIELD
from dsort.spec.algorithms import AnyAlgorithm, algorithm_model, options_model
from dsort.spec.fields import (
    ArchiveExtension,
    Bucket,
    ClassText,
    Count,
    Expansion,
    Extension,
    KeyMap,
    KeyMapLocation,
    Limit,
    MemoryAmount,
    OutputFormat,
    OutputTemplate,
    ShardCount,
    SidecarKinds,
    SizeBytes,
    SplitName,
)
from dsort.spec.inputs import (
    INPUTS_MAX,
    InputFormat,
    JobConfig,
    Source,
    ignored,
)
from dsort.spec.part import LATER, Part, late_part, of_option
from dsort.spec.target import Target
from dsort.storage.ref import BucketRef
from dsort.transforms.fields import Require

if TYPE_CHECKING:
    RequireOptions = Mapping[str, Any]

    from dsort.spec.more_inputs import Ingest, Input, Join, Mix
    from dsort.spec.outputs import Amend, Hook, OnShard, Output
    from dsort.spec.transform import Deduplicate, Transform
    from dsort.transforms.base import Step
else:
    RequireOptions = options_model(Require)

    Amend = late_part("dsort.spec.outputs:Amend")
    Deduplicate = late_part("dsort.spec.transform:Deduplicate")
    Hook = late_part("dsort.spec.outputs:Hook")
    Ingest = late_part("dsort.spec.more_inputs:Ingest")
    Input = late_part("dsort.spec.more_inputs:Input")
    Join = late_part("dsort.spec.more_inputs:Join")
    Mix = late_part("dsort.spec.more_inputs:Mix")
    OnShard = late_part("dsort.spec.outputs:OnShard")
    Output = late_part("dsort.spec.outputs:Output")
    Transform = late_part("dsort.spec.transform:Transform")

OUTPUTS_MAX: Final = 100
_COMPLETED: Final = AfterValidator(of_option(lambda given: Require.of(given).options))
"""Specs with the same meaning are equal, even if one writes out more defaults."""


class SpecFields(Part):
    """The fields of a spec, each of which is valid by itself. ``excludes`` and ``*_rules`` have the
    rules between fields."""

    input_bck: Bucket = Field(
        default_factory=lambda: BucketRef("", ""),
        description="The bucket to read: the name of a directory under the data root, a URI, or an "
        "object with name, provider and how it is reached. Required, unless there are inputs.",
        examples=["images", "s3://bucket/images", {"name": "images", "provider": "aws"}],
    )
    output_bck: Bucket = Field(
        default_factory=lambda: BucketRef("", ""),
        description="The bucket to write; never http(s)://. Default, also for a bucket without a "
        "name: the bucket of the first of outputs, if each output has one; else input_bck. A spec "
        "with inputs has no input_bck, so it must set one of the others.",
    )
    input_format: InputFormat = Field(
        default_factory=InputFormat, description="Which shards of the bucket go in."
    )
    inputs: Annotated[tuple[Input, ...], LATER] = Field(
        default=(),
        strict=False,
        max_length=INPUTS_MAX,
        description="Several inputs, in place of input_bck and input_format. The job reads one "
        "input after the other. Its name for a shard is the name of the input and that of the "
        "shard: web/shard-000.tar.",
        examples=[
            [
                {"name": "web", "input_bck": "s3://raw/web"},
                {"name": "code", "input_bck": "s3://raw/code", "input_format": {"prefix": "v2/"}},
            ]
        ],
    )
    ingest: Annotated[Ingest | None, LATER] = Field(
        default=None,
        description="The inputs are not shards but loose files, which become records. "
        "input_format selects the files, by prefix, glob or objnames; several inputs are trees of "
        "files that are joined by key.",
        examples=[{"layout": "folders"}],
    )
    mix: Annotated[Mix | None, LATER] = Field(
        default=None,
        description="How many records come out of each input: exact numbers, by the weights of "
        "inputs. Default: all records, as often as weight, repeat or records of each input sets.",
        examples=[{"records": 1000000}, {"stop": "first_exhausted"}],
    )
    join: Annotated[Join | None, LATER] = Field(
        default=None,
        description="Records of several inputs with the same key become one record, with the "
        "members of all of them, in the order of the inputs. Use it to add labels, captions or "
        "masks to a data set.",
        examples=[{"by": "key", "nonmatch": "skip"}],
    )
    input_extension: ArchiveExtension = Field(
        default_factory=str,
        description="The container of the inputs, as a suffix. A suffix without a codec covers "
        "each codec: .jsonl reads .jsonl.gz as well. Default: that of input_format's names, else "
        ".tar.",
        examples=[".tar"],
    )
    key_field: Annotated[str, LATER] = Field(
        default="",
        max_length=1000,
        description="The place of a record's key, in containers whose records have no names: a "
        "JSON pointer (/meta/id), a feature, or a column. Default: records are numbered.",
        examples=["/id"],
    )
    strip_final_newline: Annotated[bool, LATER] = Field(
        default=False,
        description="Where members become lines of text: true removes the line feed at the end of "
        "a payload. Removals are counted; converting the lines back does not restore the line "
        "feeds. False: a payload that ends in a line feed is refused.",
    )
    member_defaults: Annotated[Mapping[Extension, str], LATER] = Field(
        default_factory=dict,
        description="Where records become samples (.mds, .bin), which must all have the same "
        "members: by extension, the content of a member that a record lacks. Added members are "
        "counted and named in the manifest; converting the samples back keeps them. Default: a "
        "record that lacks a member fails the job.",
        examples=[{"cls": "-1", "txt": ""}],
    )
    output_format: OutputFormat | None = Field(
        default=None,
        description="The range of names of the outputs: 'shard-{0000..9999}', 'shard-@9999', "
        "'shard-%06d', or with fields: {n} or {n:05d} counts from 0, {total:05d} is the number of "
        "shards, {split} is the field split. Required unless there is an external key map. The "
        "output extension is appended to names that have no archive extension.",
        examples=["shuffled-%06d", "data/{split}-{n:05d}-of-{total:05d}"],
    )
    keep_shards: Annotated[bool, LATER] = Field(
        default=False,
        description="Each input shard becomes one output shard of the same name, with the records "
        "that the steps leave, in their order. Needs algorithm none, and replaces output_format "
        "and the fields that set where shards end. A shard of which no record is left becomes an "
        "empty shard.",
    )
    like: Annotated[str, LATER] = Field(
        default="",
        max_length=4096,
        description="Another result: the path or URI of its manifest or view, or a bucket, which "
        "stands for its newest result. Output shards get the names of the shards of that result, "
        "and record n of an output shard is the input record with the key of record n in that "
        "result's shard. A key that the inputs lack, or have twice, is an error. ekm_missing_key "
        "is the reaction to input records whose keys that result lacks.",
        examples=["images-shuffled", "s3://bucket/.dsort/20260131-235959-4f2a9c/manifest.json"],
    )
    split: SplitName = Field(
        default="",
        description="The name of the split to which the outputs belong. It replaces {split} in "
        "output_format, and is in sidecars; without it, sidecars have train.",
        examples=["train"],
    )
    outputs: Annotated[tuple[Output, ...], LATER] = Field(
        default=(),
        strict=False,
        max_length=OUTPUTS_MAX,
        description="Several outputs in one job: each record goes to one of them, by a hash or by "
        "the first condition that is true of it. Each has shards of its own, in the job's order.",
        examples=[[{"name": "train", "fraction": 0.98}, {"name": "val", "fraction": 0.02}]],
    )
    split_by: Annotated[str, LATER] = Field(
        default="key",
        description="The value that chooses a record's output where outputs have fractions: "
        "records with the same value go to the same output, also in later jobs with more data. An "
        "expression as in the step filter: key, shard, json.speaker.",
        examples=["key", "json.speaker"],
    )
    exact: Annotated[bool, LATER] = Field(
        default=False,
        description="Each output gets exactly its fraction of the records: the records with the "
        "smallest hashes go to the first output. When data are added, a record may change its "
        "output. The job reads the inputs once more.",
    )
    stratify: Annotated[ClassText | None, LATER] = Field(
        default=None,
        description="The fractions of outputs hold exactly in each class. The class of a record "
        "is the content of the member with this extension (`cls`), the column of this name in a "
        "table, a field of the JSON member (`json.label`), or an expression as in the step "
        "filter. With exact, the fractions also hold for all records together. The job reads the "
        "inputs once more.",
        examples=["cls", "json.label"],
    )
    output_extension: ArchiveExtension = Field(
        default_factory=str,
        description="The container of the outputs, as a suffix. Default: that of output_format, "
        "else input_extension.",
        examples=[".tar"],
    )
    output_compression_level: int | None = Field(
        default=None,
        description="The compression level of the codec of output_extension: gzip 1 to 9, zstd -7 "
        "to 22, lz4 1 to 12. Default: 1 for each codec; only zstd's levels below 0 are faster. "
        "gzip levels above 3 take several times as long as level 1.",
        examples=[3],
    )
    max_expansion: Expansion = Field(
        default=EXPANSION_MAX_DEFAULT,
        description="The maximum size of a decoded input shard, as a multiple of its compressed "
        "size; 16 MiB are allowed in any case. The same limit applies to the payload of a tar "
        "whose hard links become files. A larger shard is refused, because it may have been made "
        "to fill the disk.",
    )
    output_shard_size: SizeBytes = Field(
        default=None,
        description="An output shard closes once its payload has this many bytes: 100MB = 100 x "
        "1024 x 1024. If output_shard_records is set, too, the limit that is reached first closes "
        "the shard. Neither can be combined with a number as output_shard_count. If none of the "
        "three is set and the template is bounded, the size is total / number of names.",
        examples=["100MB"],
    )
    output_shard_size_is: Literal["at_least", "at_most"] = Field(
        default="at_least",
        description="at_most: a shard closes before its size would exceed output_shard_size; a "
        "larger record gets a shard of its own, and a warning reports it.",
    )
    output_shard_size_counts: Literal["payload", "file"] = Field(
        default="payload",
        description="The bytes that output_shard_size counts. file: also headers and padding of "
        "members, which are most of a shard of small members; with output_shard_size_is: at_most, "
        "the whole file. For compressed shards, file counts the compressed file, to within 1 % "
        "from 32 MB on; then all records are compressed twice.",
    )
    output_shard_records: Count | None = Field(
        default=None,
        description="The exact number of records of every output shard; the last one may have "
        "fewer.",
    )
    output_shard_count: ShardCount = Field(
        default=None,
        description="The exact number of output shards; their record counts differ by at most "
        "one. {multiple_of: 64}: the smallest of 64, 128, ... that output_shard_size (as an "
        "average) and output_shard_records (as a maximum) allow, if they are set.",
        examples=[64, {"multiple_of": 64}],
    )
    equalize: Annotated[Literal["drop"] | None, LATER] = Field(
        default=None,
        description="With output_shard_count: all shards of an output have exactly the same number "
        "of records, so that all workers that read them get as many batches. drop: the last "
        "records of the order are left out, fewer than there are shards. They are counted and "
        "named in the manifest.",
        examples=["drop"],
    )
    row_group_rows: Count | None = Field(
        default=None,
        description="The maximum number of rows in a row group of a Parquet output, or in a "
        "record batch of an Arrow output. Default: if a column holds files (a struct of bytes and "
        "path), a group ends once it has both 100 rows and 8 MiB; else only row_group_bytes "
        "limits it.",
        examples=[1000],
    )
    row_group_bytes: SizeBytes = Field(
        default=None,
        description="A row group, or a record batch, is closed before its values exceed this "
        "number of bytes. Up to 1GB. Default: 64MB.",
        examples=["64MB"],
    )
    output_compression: Literal["none", "snappy", "zstd", "lz4", "gzip", "brotli"] | None = Field(
        default=None,
        description="The compression of columns, except those that hold files. Default: snappy in "
        "Parquet, none in Arrow, which supports only zstd and lz4.",
    )
    content_defined_chunks: Annotated[bool, LATER] = Field(
        default=False,
        description="Values, and not a number of bytes, decide where pages of Parquet outputs "
        "end. So versions of a data set that differ by a few rows have most pages in common; a "
        "store with deduplication, such as the Hugging Face Hub, uploads and keeps a common page "
        "once.",
    )
    algorithm: AnyAlgorithm = Field(
        default_factory=lambda: algorithm_model().model_validate({}),
        description="How records are ordered.",
    )
    require: Annotated[Annotated[RequireOptions, _COMPLETED] | None, LATER] = Field(
        default=None,
        description="The members that each record must have before all steps of transform: their "
        "extensions, and what happens to a record that lacks one.",
        examples=[{"extensions": ["jpg;png;jpeg", "cls"], "on_missing": "exclude"}],
    )
    transform: Annotated[Transform | None, LATER] = Field(
        default=None,
        description="What happens to records after they are read and before they are ordered.",
    )
    deduplicate: Annotated[Deduplicate | None, LATER] = Field(
        default=None,
        description="Which records are left out because another record is equal.",
        examples=[{"by": "content", "extensions": ["jpg"]}],
    )
    ekm_file: KeyMapLocation | None = Field(
        default=None,
        description="External key map: which output template each record goes to. A path (relative "
        "to the spec file, if the spec is one) or an http(s) URL; JSON {template: [key, ...]} or "
        "lines of key, separator, template.",
    )
    ekm_file_sep: str = Field(
        default="\t",
        min_length=1,
        description="The separator in a key map of lines. Default: a tab.",
    )
    ekm: KeyMap | None = Field(
        default=None,
        description="The external key map itself: {template: [key, ...]}. A key is a record key, "
        "a member's name, or a regular expression.",
        examples=[{"cats-%04d": ["^cat"], "dogs-%04d": ["^dog"]}],
    )
    ekm_default: OutputTemplate | None = Field(
        default=None,
        description="The template of records that the external key map does not place; needs "
        "ekm_missing_key: ignore or warn.",
    )
    compatibility: Literal["dsort", "aistore"] = Field(
        default="dsort",
        description="aistore: order and place records of .tar and .zip shards as AIStore does, "
        "where AIStore defines the result. alphanumeric and md5 compare the whole names of first "
        "members (algorithm.compare: name); string keys of content keep the white space around "
        "them (strip: false). With an external key map, output names are those that its templates "
        "make, without output_extension, and a shard closes once its payload, with 512 bytes more "
        "for each member of a .tar, exceeds output_shard_size.",
    )
    description: str = Field(default="", description="Free text, kept in the manifest.")
    max_mem_usage: MemoryAmount = Field(
        default_factory=str,
        description="How much memory the job may use: a share of the memory that it is allowed "
        "('80%') or an amount ('10GB'). If that is less than the minimum of 91 MiB, the job uses "
        "the minimum, and its records move through the disk. Default: default_max_mem_usage.",
        examples=["80%", "10GB"],
    )
    extract_concurrency_max_limit: Limit = Field(
        default=0, description="The maximum number of extractors at a time; 0: one a core."
    )
    create_concurrency_max_limit: Limit = Field(
        default=0, description="The maximum number of creators at a time; 0: one a core."
    )
    dsorter_type: Literal["dsort_general", "dsort_mem"] | None = ignored(
        "How AIStore moves records."
    )
    dry_run: bool = Field(
        default=False, description="Resolve, extract and plan; write nothing and print the plan."
    )
    verify: Literal["none", "content"] = Field(
        default="none",
        description="content: checksum every record's bytes on the way in and compare them on the "
        "way out; costs one more pass over the bytes.",
    )
    checksums: Annotated[Literal["sha256"] | None, LATER] = Field(
        default=None,
        description="sha256: the manifest has the SHA-256 of each output shard beside its XXH3. It "
        "costs one more pass over the outputs.",
    )
    index: SidecarKinds = Field(
        default=(),
        description="Files beside the shards for the programs that read them: one kind, or a "
        "list. wids: a wids-shard-index-v1 JSON; its md5 sums cost one more pass over the "
        "outputs, and records that wids would not count as samples of their own are refused: "
        "strays, links, and keys that occur twice. dali: an index of each shard. energon: "
        ".nv-meta/ and an index of each shard. lhotse: an index of each shard. lines: "
        "<shard>.idx, the place of each line. huggingface: README.md, by which load_dataset finds "
        "the shards. sizes: sizes.json, the records of each shard. croissant: croissant.json; it "
        "needs checksums: sha256.",
        examples=["wids", ["dali", "sizes"]],
    )
    lineage: Annotated[Literal["parquet", "jsonl"] | None, LATER] = Field(
        default=None,
        description="Keep a file in the job's directory with the place of each record: its bytes "
        "in an input shard, and its bytes in an output shard. `dsort where` reads it. parquet: "
        "for large results.",
    )
    output: Annotated[Literal["shards", "view"], LATER] = Field(
        default="shards",
        description="view: write, in place of each shard, a file that lists the byte ranges of "
        "inputs that make up the shard. Loaders read a view like shards.",
    )
    overwrite: bool = Field(
        default=False,
        description="Replace objects that have an output's name, but never inputs. Replaced "
        "objects are kept until the manifest is written. False: the job refuses to start if there "
        "is such an object.",
    )
    remove_stale: bool = Field(
        default=False,
        description="With overwrite: once the result is committed, remove the remaining shards of "
        "the results that it replaces. A shard is removed if the manifest of such a result lists "
        "it, no newer manifest lists it, it was not written since, and output_format makes its "
        "name.",
    )
    on_success: Hook | None = Field(
        default=None,
        exclude=True,  # hooks do not describe a result, and the URL of a webhook may be a secret
        description="The hook that is called when the job has finished. It is not kept in the "
        "manifest.",
    )
    on_failure: Hook | None = Field(
        default=None,
        exclude=True,
        description="The hook that is called when the job has failed; not when a user stops it.",
    )
    amend: Annotated[Amend | None, LATER] = Field(
        default=None,
        description="The job amends a result in its output bucket: the new manifest lists the "
        "whole result. `dsort append` and `dsort remove` make such specs. Only in specs of your "
        "own machine.",
        examples=[{"job": "20260131-235959-4f2a9c", "by": "append"}],
    )
    on_shard: Annotated[OnShard | None, LATER] = Field(
        default=None,
        description="A program that is run for each output shard, in their order, once the result "
        "is committed. Only in specs of your own machine.",
        examples=[{"exec": ["rsync", "{path}", "backup:/shards/"], "timeout": "10m"}],
    )
    config: JobConfig = Field(
        default_factory=JobConfig,
        alias="Config",
        description="The object in which AIStore has reactions and limits. The same fields at the "
        "top level mean the same.",
    )

    @property
    def sources(self) -> tuple[Source, ...]:
        """The inputs in order: ``inputs``, or else the single bucket."""
        if not self.inputs:
            extension = self.input_extension
            return (Source("", self.input_bck, self.input_format, extension=extension),)
        return tuple(
            Source(
                each.name,
                each.input_bck,
                each.input_format,
                f"inputs[{number}].",
                Fraction(str(each.weight or each.repeat or 1)),
                each.records,
                each.input_extension or self.input_extension,
            )
            for number, each in enumerate(self.inputs)
        )

    @property
    def weighs_inputs(self) -> bool:
        """Whether records may be used several times, or not at all."""
        if self.mix is not None:
            return True
        return any(each.weight != 1 or each.records is not None for each in self.sources)

    @property
    def copies_records(self) -> bool:
        """Whether the spec asks for several copies of a record, whatever the inputs have."""
        if self.mix is not None:
            return self.mix.replacement or self.mix.stop == "all_exhausted"
        return any(each.weight > 1 for each in self.sources)

    @property
    def targets(self) -> tuple[Target, ...]:
        """The outputs: ``outputs``, or else the single one."""
        ends = (self.output_shard_size, self.output_shard_records, self.output_shard_count)
        if not self.outputs:
            template = None if self.has_key_map else self.output_format
            level = self.output_compression_level
            meant = (self.output_shard_size_is, self.output_shard_size_counts)
            one = Target("", "", template, *ends, None, self.output_extension, level, *meant)
            if self.is_placed_as_aistore:
                one = one.as_aistore_ends(self.input_extension)
            return (one,)
        found = []
        for number, each in enumerate(self.outputs):
            own = (each.output_shard_size, each.output_shard_records, each.output_shard_count)
            says = any(value is not None for value in own)
            template = each.output_format or self.output_format
            named = None if template is None else template.replace(SPLIT_FIELD, each.name)
            bucket = None if each.output_bck == self.output_bck else each.output_bck
            sizes = own if says else ends
            extension, level = each.output_extension, each.output_compression_level
            if extension is None:
                extension, level = self.output_extension, self.output_compression_level
            path = f"outputs[{number}]."
            size_is = each.output_shard_size_is or self.output_shard_size_is
            counts = each.output_shard_size_counts or self.output_shard_size_counts
            target = Target(each.name, path, named, *sizes, bucket, extension, level)
            found.append(replace(target, size_is=size_is, size_counts=counts))
        return tuple(found)

    @property
    def steps(self) -> "tuple[Step, ...]":
        """The steps of ``transform``, in the form that workers receive."""
        return () if self.transform is None else self.transform.build()

    @property
    def output_names(self) -> tuple[str, ...]:
        """The names of several outputs; empty for a single one."""
        return tuple(each.name for each in self.outputs)

    @property
    def output_templates(self) -> tuple[tuple[str, str, str], ...]:
        """The templates of the outputs, except those of a key map, each with the extension that is
        appended to its names, and the place of its bucket."""
        targets = (each for each in self.targets if each.template is not None)
        return tuple((each.template or "", each.extension, each.place) for each in targets)

    @property
    def has_buckets_of_outputs(self) -> bool:
        """Whether some output is in another bucket than the job's own."""
        return any(each.output_bck not in (None, self.output_bck) for each in self.outputs)

    @property
    def has_key_map(self) -> bool:
        """Whether an external key map assigns records to shards, instead of ``output_format``."""
        return self.ekm is not None or self.ekm_file is not None

    @property
    def is_placed_as_aistore(self) -> bool:
        """Whether shards of a key map get the same names and sizes as in AIStore."""
        return self.has_key_map and self.compatibility == "aistore"

    @property
    def named_output_bck(self) -> BucketRef | None:
        """The bucket for the files of the job itself: ``output_bck``; or the bucket of the first
        output, if each output has one of its own. None: the spec sets neither."""
        if self.gives("output_bck"):
            return self.output_bck
        own = [each.output_bck for each in self.outputs]
        return own[0] if own and None not in own else None
