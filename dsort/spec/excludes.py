"""The table of features that cannot be combined: which field has the problem, with which other one,
and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from msgspec import Struct

from dsort.errors import SpecProblem
from dsort.order.algorithms import Shuffle
from dsort.spec.inputs import JobConfig
from dsort.spec.part import Rules, usable
from dsort.spec.parts import SpecFields

rule = Rules()

_BEHIND: Final = "join in one job, and do that with its result in another"
_GAPS: Final = (
    "with algorithm.batches leaves gaps in windows, so that batches of fewer records would lie "
    "between others"
)
_IN_A_JOB_BEFORE: Final = "leave records out in a job before this one"
_MIX_ENDS: Final = "one of them says how many records come out"
_SIZES: Final = ("output_shard_size", "output_shard_records", "output_shard_count")


class Excludes(Struct, frozen=True):
    """``fields`` that cannot be combined with ``other``.

    A field is a path (``ingest.labels``), excluded where the spec sets it to something else than
    its default; or a path and a value (``duplicate_keys: rename``). ``other`` is one as well.
    Either may be a name in :data:`_CASES`, also of what a field needs and the spec does not have.
    ``why`` follows the sentence that it cannot be combined; ``text`` is the message in place of
    both; ``path``: that of the problem, if it is another field's."""

    fields: tuple[str, ...]
    other: str
    why: str = ""
    hint: str = ""
    text: str = ""
    path: str = ""

    def problems(self, spec: SpecFields) -> Iterator[SpecProblem]:
        """A problem for each of the fields that ``spec`` has beside the other one."""
        for field in self.fields if _has(spec, self.other) else ():
            yield from usable(self._problems_of(field, spec))

    def _problems_of(self, field: str, spec: SpecFields) -> Iterator[SpecProblem]:
        if _has(spec, field):
            path = self.path or field.partition(": ")[0]
            if field == "weights":
                path = "inputs" if spec.mix is None else "mix"
            yield SpecProblem(path, self.message(field), self.hint)

    def message(self, field: str) -> str:
        """What is said of one of the fields."""
        value = field.partition(": ")[2]
        is_clause = self.why.startswith(("which ", "whose ")) and not self.why.endswith("?")
        why = f"{',' if is_clause else ':'} {self.why}" if self.why else ""
        return self.text or f"{value} cannot be combined with {self.other}{why}".lstrip()


def _has(spec: SpecFields, name: str) -> bool:
    if name in _CASES:
        return bool(_CASES[name](spec))
    path, _, wanted = name.partition(": ")
    owner, _, field = path.rpartition(".")
    if field in JobConfig.model_fields:
        owner = "config"
    part = getattr(spec, owner) if owner else spec
    if part is None or not part.gives(field):
        return False
    value = getattr(part, field)
    if wanted:
        return wanted in value if isinstance(value, tuple) else bool(value == wanted)
    default = type(part).model_fields[field].get_default(call_default_factory=True)
    return bool(value != default)


def _leaves_duplicates_out(spec: SpecFields) -> bool:
    drops = spec.deduplicate is not None or spec.config.duplicate_keys == "drop"
    return drops and bool(spec.exact or spec.stratify)


def _shuffles_by(name: str) -> Callable[[SpecFields], object]:
    """Whether the spec has the option ``name`` of a shuffle; rules about options refuse it where
    another algorithm has it."""
    return lambda spec: spec.algorithm.kind == Shuffle.kind and getattr(spec.algorithm, name)


def _shares_of_at_most_a_size(spec: SpecFields) -> bool:
    return any(
        target.asked_count is not None and target.count is None and target.is_at_most
        for target in spec.targets
    )


_CASES: Final[Mapping[str, Callable[[SpecFields], object]]] = {
    "algorithm.batches": _shuffles_by("batches"),
    "algorithm.interleave": _shuffles_by("interleave"),
    "a key map that must have all keys": lambda spec: (
        spec.has_key_map and spec.config.ekm_missing_key == "abort"
    ),
    "a key map": lambda spec: spec.has_key_map,
    "amend by append": lambda spec: spec.amend and spec.amend.by == "append",
    "an external key map": lambda spec: spec.has_key_map and not spec.outputs,
    "deduplicate by a field": lambda spec: (
        spec.deduplicate and not isinstance(spec.deduplicate.by, str)
    ),
    "deduplicate by content": lambda spec: spec.deduplicate and spec.deduplicate.by == "content",
    "deduplicate by other than content": lambda spec: (
        spec.deduplicate and spec.deduplicate.by != "content"
    ),
    "deduplicate by key": lambda spec: spec.deduplicate and spec.deduplicate.by == "key",
    "exact or stratify where duplicates are left out": _leaves_duplicates_out,
    "fewer than two inputs": lambda spec: len(spec.inputs) < 2,
    "files without classes": lambda spec: spec.ingest and spec.ingest.layout != "folders",
    "files without a recipe": lambda spec: spec.ingest and spec.ingest.recipe is None,
    "folders": lambda spec: spec.ingest and spec.ingest.layout == "folders",
    "layout: metadata": lambda spec: spec.ingest and spec.ingest.layout == "metadata",
    "mix of no inputs": lambda spec: not spec.inputs,
    "mix without a number": lambda spec: (
        spec.mix and spec.mix.records is None and spec.mix.stop is None
    ),
    "no external key map": lambda spec: not spec.has_key_map,
    "no output bucket": lambda spec: spec.named_output_bck is None,
    "no overwrite": lambda spec: not spec.overwrite,
    "no fractions": lambda spec: all(each.fraction is None for each in spec.outputs),
    "output_bck": lambda spec: spec.output_bck.is_stream,
    "outputs that have buckets of their own": lambda spec: spec.has_buckets_of_outputs,
    "recipe": lambda spec: spec.ingest and spec.ingest.recipe is not None,
    "several outputs": lambda spec: len(spec.outputs) > 1,
    "streams as inputs": lambda spec: any(each.bucket.is_stream for each in spec.sources),
    "shares of at most a size": _shares_of_at_most_a_size,
    "shards that end nowhere": lambda spec: not any(each.ends for each in spec.targets),
    "standard output": lambda spec: spec.output_bck.is_stream,
    "weights": lambda spec: spec.weighs_inputs,
    "weights that make copies": lambda spec: spec.copies_records,
}

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
        text="cannot be combined with ingest: files are listed, and no stream",
        path="input_bck",
    ),
    Excludes(
        ("ingest.pipes",),
        "files without a recipe",
        text="is about lines of a recipe, and there is none",
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
        "leave it out: they are an error then; drop takes the first and loses the others",
    ),
    Excludes(("exact", "stratify"), "join", "it would count the parts of records", _BEHIND),
    # records
    Excludes(
        ("deduplicate.extensions",), "deduplicate by other than content", text="need by: content"
    ),
    Excludes(
        ("deduplicate",),
        "weights that make copies",
        "they would count as equal",
        "weights up to 1 and mix: {stop: first_exhausted} make none; or leave out what is equal in "
        "a job before this one",
    ),
    Excludes(
        ("duplicate_keys",), "deduplicate by key", "which leaves none", "leave one of them out"
    ),
    Excludes(
        ("duplicate_keys: rename",),
        "deduplicate by content",
        "keys are chosen before it",
        "use warn or abort",
    ),
    Excludes(
        ("duplicate_keys: rename",),
        "deduplicate by a field",
        "keys are chosen before it",
        "use warn or abort",
    ),
    Excludes(
        ("algorithm.interleave", "algorithm.batches"),
        "a key map",
        hint="outputs: [...] divides records by conditions, and can be combined with it",
    ),
    Excludes(
        ("algorithm.interleave", "algorithm.batches"),
        "join",
        "places are given before records meet",
        "order what is joined in another job",
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
        text="cannot be combined with amend: the shards that are there stay",
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
    Excludes(("split",), "outputs", "each has its name"),
    Excludes(
        ("exact", "stratify"),
        "split_by",
        "what stays together cannot be parted exactly",
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
        hint="output_shard_size is what they have on average",
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
        "shards stay what they are",
    ),
    Excludes(
        (
            *("output_format", "outputs", "ekm", "ekm_file", "ekm_default", "split", *_SIZES),
            *("keep_shards", "equalize", "remove_stale", "amend", "output_bck"),
        ),
        "like",
        "shards are those of the other result",
    ),
    Excludes(
        ("weights", "duplicate_keys"), "like", "each of its records is one record of the inputs"
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
        "its index would list the shards of all",
        "energon and huggingface know splits",
    ),
    Excludes(("on_shard",), "outputs that have buckets of their own"),
    Excludes(("remove_stale", "output_bck"), "amend", "which does not keep it up yet"),
    Excludes(
        ("ingest", "index", "checksums", "lineage", "on_shard", "amend", "verify"),
        "output: view",
        "which holds no shards",
        "leave out one of them",
    ),
    Excludes(("output: view",), "outputs that have buckets of their own"),
)


@rule
def _features_go_together(spec: SpecFields) -> Iterator[SpecProblem]:
    for row in EXCLUDES:
        yield from usable(row.problems(spec))
