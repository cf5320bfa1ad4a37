"""The table of features that cannot be combined: the field with the problem, the other field, and
the reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dsort.errors import SpecProblem
from dsort.spec.cases import Excludes
from dsort.spec.part import Rules
from dsort.spec.parts import SpecFields
from dsort.storage.registry import EXAMPLES

rule = Rules()

_BEHIND: Final = "join in one job, and do the rest in a second job, which reads its result"
_GAPS: Final = (
    "with algorithm.batches leaves gaps in windows, so that batches of fewer records would lie "
    "between others"
)
_IN_A_JOB_BEFORE: Final = "leave records out in a job before this one"
_MIX_ENDS: Final = "one of them says how many records come out"
_SIZES: Final = ("output_shard_size", "output_shard_records", "output_shard_count")


EXCLUDES: Final = (
    # inputs
    Excludes(
        ("inputs",),
        "no output bucket",
        hint="several inputs have no bucket that the outputs would go to by default",
        text="is required where there are inputs",
        path="output_bck",
    ),
    Excludes(
        ("ingest",),
        "no output bucket",
        hint='e.g. "file:///data/shards" or "s3://bucket/shards"',
        text="is required: shards are not written among files",
        path="output_bck",
    ),
    Excludes(
        ("ingest",),
        "streams as inputs",
        text="cannot be combined with ingest: a stream has no files to list",
        path="input_bck",
    ),
    Excludes(
        ("ingest.pipes",),
        "files without a recipe",
        text="is about lines of a recipe, and the spec has no recipe",
    ),
    Excludes(
        ("ingest.class_map",),
        "files without classes",
        text="needs layout: folders, which has classes",
    ),
    Excludes(
        ("mix",),
        "mix of no inputs",
        hint="it says how many records come out of each input",
        text="needs inputs",
    ),
    Excludes(("mix",), "mix without a number", hint=_MIX_ENDS, text="needs records or stop"),
    Excludes(("mix.records",), "mix.stop", hint=_MIX_ENDS, text="has records and stop", path="mix"),
    Excludes(
        ("mix.replacement",),
        "mix.stop",
        text="needs mix.records: stop says whether records occur twice",
    ),
    Excludes(
        ("join",),
        "fewer than two inputs",
        hint="inputs: [{name: images, input_bck: ...}, {name: labels, input_bck: ...}]",
        text="needs several inputs",
    ),
    Excludes(("join",), "ingest", "files of one key are joined already"),
    Excludes(("weights",), "ingest", "inputs are trees of files that are joined"),
    Excludes(("ingest.archives",), "layout: metadata"),
    Excludes(("ingest.labels",), "folders", "whose classes are labels"),
    Excludes(
        tuple(
            f"ingest.{name}"
            for name in (
                "layout",
                "key",
                "key_pattern",
                "dots",
                "archives",
                "extensions",
                "members",
            )
        ),
        "recipe",
        "which names each member",
    ),
    Excludes(("weights",), "join", hint=_BEHIND, text="weights cannot be combined with join"),
    Excludes(("deduplicate",), "join", "it compares records before they are joined", _BEHIND),
    Excludes(
        ("duplicate_keys: ignore", "duplicate_keys: rename"),
        "join",
        "which of an input's records is meant?",
        "leave it out: duplicate keys are an error then; drop keeps the first record and loses "
        "the others",
    ),
    Excludes(("exact", "stratify"), "join", "it would count the parts of records", _BEHIND),
    Excludes(
        ("ingest",),
        "inputs that are no tars",
        hint="leave it out; output_extension may be another",
        text='cannot be combined with ingest: files are read as .tar, not as "{input}"',
        path="input_extension",
    ),
    Excludes(
        ("weights",),
        "tables to read",
        hint="leave out mix, and weight, repeat and records of inputs",
        text="rows of tables cannot be copied, nor taken in proportion",
    ),
    Excludes(
        ("weights",),
        "keys that are in records",
        hint="leave out key_field: then records are numbered",
        text="a {output} record contains its key, so its copies would have the same key",
    ),
    # records
    Excludes(
        ("output_shard_size_counts: file",),
        "tables on the way",
        text="file is not supported for {carrier} shards: their size is not known before they are "
        "written",
    ),
    Excludes(
        ("outputs[].output_shard_size_counts: file",),
        "tables on the way",
        text="{carrier} shards are measured by their payload",
    ),
    Excludes(
        ("duplicate_keys: rename",),
        "tables on the way",
        hint="use warn or abort",
        text="rename is not supported for {carrier} shards: keys are values of a column",
    ),
    Excludes(
        ("strip_final_newline",),
        "no lines that are made",
        hint="it is for members that become lines",
        text="cannot be combined with {input} inputs and {output}",
    ),
    Excludes(
        ("member_defaults",),
        "no samples that are made",
        hint="it is for members that become samples: .mds, .bin",
        text="cannot be combined with {input} inputs and {output}",
    ),
    Excludes(
        ("deduplicate by content",),
        "tables",
        hint="use by: key or by: {field: ...}, or convert the shards to .tar first",
        text="by content is not supported for {table} shards yet",
        path="deduplicate.by",
    ),
    Excludes(
        ("deduplicate.extensions",), "deduplicate by other than content", text="need by: content"
    ),
    Excludes(
        ("deduplicate",),
        "weights that make copies",
        "copies would count as equal",
        "weights up to 1 and mix: {stop: first_exhausted} make no copies; or deduplicate in a job "
        "before this one",
    ),
    Excludes(
        ("duplicate_keys",),
        "deduplicate by key",
        "which leaves no duplicate keys",
        "leave one of them out",
    ),
    Excludes(
        ("duplicate_keys: rename",),
        "deduplicate by content",
        "rename changes keys before records are compared",
        "use warn or abort",
    ),
    Excludes(
        ("duplicate_keys: rename",),
        "deduplicate by a field",
        "rename changes keys before records are compared",
        "use warn or abort",
    ),
    Excludes(
        ("algorithm.interleave", "algorithm.batches"),
        "a key map",
        hint="divide records by conditions instead, with outputs: [...]",
    ),
    Excludes(
        ("algorithm.interleave", "algorithm.batches"),
        "join",
        "places are assigned before records are joined",
        "order the joined records in another job",
    ),
    Excludes(
        # Places are numbers among the records of an output, where duplicates are missing.
        ("algorithm.interleave", "algorithm.batches"),
        "exact or stratify where duplicates are left out",
        hint=_IN_A_JOB_BEFORE,
    ),
    Excludes(("deduplicate",), "algorithm.batches", hint=_IN_A_JOB_BEFORE, text=_GAPS),
    Excludes(
        ("duplicate_keys: drop",),
        "algorithm.batches",
        hint=_IN_A_JOB_BEFORE,
        text=f"drop {_GAPS}",
    ),
    # outputs
    Excludes(
        ("split_by", "exact", "stratify"),
        "no fractions",
        text="needs outputs that have fractions",
    ),
    Excludes(
        ("stratify",),
        "tables to tables by more than a column",
        text="is more than the name of a column, which is not supported from tables to tables",
    ),
    Excludes(
        ("ekm_default",),
        "no external key map",
        hint="set ekm or ekm_file",
        text="needs an external key map",
    ),
    Excludes(
        ("ekm_default",),
        "a key map that must have all keys",
        hint='set ekm_missing_key to "warn" or "ignore"',
        text="no record can go there: a record that the key map does not place aborts the job",
    ),
    Excludes(
        ("remove_stale",),
        "no overwrite",
        hint="set overwrite: true, too (--overwrite)",
        text="needs overwrite: without it no result is replaced",
    ),
    Excludes(
        ("overwrite",),
        "amend by append",
        text="cannot be combined with amend: append keeps the shards of the result",
    ),
    Excludes(
        ("output: view",),
        "streams as inputs",
        hint="leave out output: view, and the job writes shards",
        text="view does not work: a stream cannot be read again",
    ),
    Excludes(
        ("ekm",), "ekm_file", text="there is an ekm_file, too: only one of them can place records"
    ),
    Excludes(
        ("outputs",),
        "a key map",
        hint="when: 'key.matches(\"^cat\")' does what a key map does",
        text="there is an external key map, too: only one of them can place records",
    ),
    Excludes(("split",), "outputs", "each output has a name of its own"),
    Excludes(
        ("exact", "stratify"),
        "split_by",
        "records that stay together cannot be divided exactly",
        "leave out one of them",
    ),
    Excludes(
        ("output_shard_size_is: at_most",),
        "shards that end nowhere",
        hint='as in "output_shard_size": "100MB"',
        text="needs output_shard_size",
    ),
    Excludes(
        ("shares of at most a size",),
        "shares of at most a size",
        hint="output_shard_size is the average size of the shards",
        text="at_most cannot be combined with a multiple_of: shards share the records evenly",
        path="output_shard_size_is",
    ),
    Excludes(
        ("output_shard_count",),
        "an external key map",
        hint="use output_shard_size or output_shard_records",
    ),
    Excludes(
        ("output_bck",),
        "keep_shards",
        hint="name a bucket",
        text="standard output is one shard, and keep_shards makes one of each input",
    ),
    Excludes(
        ("output_format", "outputs", "ekm", "ekm_file", "split", "ingest", *_SIZES),
        "keep_shards",
        "each input shard stays one shard, with its name",
    ),
    Excludes(
        (
            *("output_format", "outputs", "ekm", "ekm_file", "ekm_default", "split", *_SIZES),
            *("keep_shards", "equalize", "remove_stale", "amend", "output_bck"),
        ),
        "like",
        "shards are cut as in the other result",
    ),
    Excludes(
        ("weights", "duplicate_keys"),
        "like",
        "each record of the other result is one record of the inputs",
    ),
    Excludes(("join",), "like", hint=_BEHIND, text="join cannot be combined with like"),
    Excludes(
        (
            *("outputs", "ekm", "ekm_file", "index", "checksums", "lineage", "on_shard"),
            "remove_stale",
            "output: view",
        ),
        "standard output",
        "which is one shard and nothing beside it",
        "write to a bucket",
    ),
    Excludes(
        ("equalize",),
        "standard output",
        "which is one shard of all records",
        "write to a bucket",
    ),
    Excludes(
        ("index: wids",),
        "several outputs",
        "its index would list the shards of all outputs",
        "energon and huggingface list splits",
    ),
    Excludes(("on_shard",), "outputs that have buckets of their own"),
    Excludes(("remove_stale", "output_bck"), "amend", "which does not support it yet"),
    Excludes(
        ("ingest", "index", "checksums", "lineage", "on_shard", "amend", "verify"),
        "output: view",
        "which holds no shards",
        "leave out one of them",
    ),
    Excludes(("output: view",), "outputs that have buckets of their own"),
    Excludes(
        ("index of files that list shards",),
        "outputs that have buckets of their own",
        hint="leave it out, or have all outputs in one bucket",
        text="{listing} would list the shards of several buckets",
        path="index",
    ),
    Excludes(
        ("index of files that need SHA-256",),
        "shards without SHA-256",
        hint="set checksums: sha256, too",
        text="{wanting} lists the SHA-256 of each shard",
        path="index",
    ),
    Excludes(
        ("standard output alone",),
        "containers with an index beside shards",
        hint="use .tar, .zip and .jsonl, or write to a bucket",
        text="{output} shards need an index beside them",
        path="output_extension",
    ),
    Excludes(
        ("row_group_rows", "row_group_bytes", "output_compression"),
        "outputs that are no tables",
        text="cannot be combined with {output}: its shards have no columns",
    ),
    Excludes(
        ("content_defined_chunks",),
        "outputs that are no Parquet",
        hint="write .parquet, or leave it out",
        text="cannot be combined with {output}: its shards have no pages",
    ),
    Excludes(
        ("strip_final_newline", "member_defaults"),
        "conversions as shards are written",
        hint="convert in a separate job, which counts the changed members",
        text="cannot be combined with {late}",
    ),
    Excludes(
        ("row_group_bytes",),
        "row groups of more than 1GB",
        text="is not between 1 and 1GB",
    ),
    Excludes(
        ("equalize",),
        "shards that are not counted",
        text="needs output_shard_count, a number or {multiple_of: 64}{uncounted}",
    ),
    Excludes(
        ("amend by remove",),
        "more than keys to remove",
        hint="`dsort remove` makes such a spec",
        text="remove is for shards that are written again in their place, without some keys",
        path="amend.by",
    ),
    Excludes(
        ("amend by remove",),
        "numbered records without keys to remove",
        hint="filter them in a job of its own",
        text="records of {output} shards have only numbers, so a removal would change their keys",
        path="amend.by",
    ),
    # each of several inputs
    Excludes(("no input",), "no input", hint=EXAMPLES, text="is required", path="input_bck"),
    *(
        Excludes(
            ("inputs",),
            name,
            hint=f"move it into an item of inputs, or leave inputs out: {name} is its short form",
            text="cannot be combined with inputs",
            path=name,
        )
        for name in ("input_bck", "input_format")
    ),
    Excludes(("inputs[].input_extension",), "ingest", "files have no container"),
    Excludes(
        ("input_format.template", "inputs[].input_format.template"),
        "ingest",
        "a template names shards",
        "use prefix, glob, or objnames",
    ),
    Excludes(("input_format", "inputs[].input_format"), "ingest.recipe", "which names each object"),
    Excludes(
        ("inputs[].repeat", "inputs[].records"),
        "mix",
        "which says how many records come out",
        "give the input a weight",
    ),
    Excludes(
        ("inputs[].join",),
        "no join",
        hint="join: {by: key} at the top level",
        text="changes the join for this input, but the spec has no join",
    ),
)


@rule
def _features_go_together(spec: SpecFields) -> Iterator[SpecProblem]:
    for row in EXCLUDES:
        yield from row.problems(spec)
