"""Rules between the fields of a spec, defaults that depend on other fields, and fields that have
no effect beside others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, Final

from msgspec import Struct

from dsort.containers.registry import (
    DEFAULT_EXTENSION,
    can_convert,
    check_writable,
    codec_of,
    container_of,
    is_columnar,
)
from dsort.errors import SpecProblem
from dsort.naming.names import archive_extension, codec_extension
from dsort.naming.templates import SPLIT_FIELD, parse_template
from dsort.order.base import OptionError
from dsort.sidecars.kinds import FOR_EXTENSIONS
from dsort.spec.aistore import COMPARE_RULES, as_aistore_orders
from dsort.spec.algorithm_rules import algorithm_rules
from dsort.spec.algorithms import algorithm_model, joined, known_options, owners_of
from dsort.spec.amend_rules import AMEND_RULES
from dsort.spec.carriers import carrier_extension
from dsort.spec.equal_rules import EQUAL_RULES
from dsort.spec.input_rules import (
    INPUT_RULES,
    is_read_only,
    named_extension,
    suffix_problem,
    with_own_extensions,
)
from dsort.spec.join_rules import JOIN_RULES
from dsort.spec.late_rules import LATE_RULES
from dsort.spec.output_rules import OUTPUT_RULES
from dsort.spec.parts import SpecFields
from dsort.spec.stream_rules import STREAM_FORMAT, STREAM_RULES, is_stdout
from dsort.storage.ref import PIPE
from dsort.storage.registry import object_store_behind
from dsort.transforms.fields import Fields
from dsort.transforms.require import Require

__all__ = ["check", "derived", "without_effect"]

_Check = Callable[[SpecFields], Iterator[SpecProblem]]

_COUNT_UNSIZED_MAX: Final = 2**31 - 1  # AIStore's limit between bounded and unbounded templates
_SIZES: Final = ("output_shard_size", "output_shard_records", "output_shard_count")
_SIZE_NEEDED = "output shard size must be set (cannot be 0 and cannot be omitted)"


class _Rule(Struct, frozen=True):
    fields: tuple[str, ...]
    problems: _Check


_RULES: list[_Rule] = []


def _rule(*fields: str) -> Callable[[_Check], _Check]:
    """Register a rule about ``fields``. The rule is skipped if one of them is already known to be
    invalid, so that each problem is reported once."""

    def register(problems: _Check) -> _Check:
        _RULES.append(_Rule(fields, problems))
        return problems

    return register


def check(spec: SpecFields, unusable: Collection[str]) -> list[SpecProblem]:
    """The problems from every rule that ``spec`` breaks, without rules about the field paths
    ``unusable``."""
    return [
        problem
        for rule in (*_RULES, *_place_rules())
        if not any(_touches(one, other) for one in rule.fields for other in unusable)
        for problem in rule.problems(spec)
    ]


def _touches(one: str, other: str) -> bool:
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")


# --- buckets -------------------------------------------------------------------------------------


@_rule("output_bck")
def _outputs_go_where_one_can_write(spec: SpecFields) -> Iterator[SpecProblem]:
    ref = spec.output_bck
    if ref.scheme == PIPE:
        text = "is required: what a program writes can only be read"
        yield SpecProblem("output_bck", text, 'a bucket, or "-" for standard output')
    if not is_read_only(ref):
        return
    behind = object_store_behind(ref)
    hint = f'write "{behind}"' if behind else "to a directory, or s3://, gs://, az://, ais://"
    if "output_bck" in spec.model_fields_set:
        yield SpecProblem("output_bck", f'"{ref.uri}" can only be read', hint)
    elif spec.named_output_bck is None:
        yield SpecProblem("output_bck", "is required: the input bucket can only be read", hint)


@_rule("overwrite", "remove_stale")
def _only_what_is_replaced_gets_stale(spec: SpecFields) -> Iterator[SpecProblem]:
    if spec.remove_stale and not spec.overwrite:
        yield SpecProblem(
            "remove_stale",
            "needs overwrite: without it no result is replaced",
            "set overwrite: true, too (--overwrite)",
        )


# --- containers ----------------------------------------------------------------------------------


@_rule("input_extension", "output_extension", "outputs")
def _inputs_can_be_written_as_outputs(spec: SpecFields) -> Iterator[SpecProblem]:
    for extension in dict.fromkeys(source.extension for source in spec.sources):
        for target in spec.targets:
            if not can_convert(extension, target.extension):
                text = f"{extension} shards cannot be written as {target.extension} yet"
                own = target.extension != spec.output_extension
                yield SpecProblem(f"{target.path * own}output_extension", text)
                break


@_rule(
    "input_extension",
    "output_extension",
    "outputs",
    "join",
    "output_shard_size_counts",
    "require",
    "transform",
    "Config.duplicate_keys",
)
def _tables_have_no_members(spec: SpecFields) -> Iterator[SpecProblem]:
    carrier = carrier_extension(spec)
    if not is_columnar(carrier):
        return
    what = f"{carrier} shards"
    if is_columnar(spec.input_extension):
        yield from _steps_on_rows(spec, what)
    if spec.output_shard_size_counts != "payload":
        text = f"file is not supported for {what}: their size is known once they are written"
        yield SpecProblem("output_shard_size_counts", text)
    if spec.config.duplicate_keys == "rename":
        text = f"rename is not supported for {what}: keys are values of a column"
        yield SpecProblem("duplicate_keys", text, "use warn or abort")


def _steps_on_rows(spec: SpecFields, what: str) -> Iterator[SpecProblem]:
    """Rows stay rows: a step that does not support rows, or only in part, is refused."""
    text = f"is not supported from tables to {what} yet"
    for number, step in enumerate(spec.transform.build() if spec.transform is not None else ()):
        path = f"transform.steps[{number}]"
        if step.kind in MAKE_ROWS:
            continue  # cells are members during the step
        if not step.is_for_rows:
            hint = "those with code: map and flat_map; or go by way of .tar"
            yield SpecProblem(path, f"{step.kind} {text}", hint)
        elif step.refused_for_rows:
            hint = "slice takes records by number, {n} counts them; sizes are those of columns"
            yield SpecProblem(path, f"{step.refused_for_rows} in a {step.kind} {text}", hint)
        if isinstance(step, Fields):
            yield from _key_columns_stay(spec, path, step)


def _key_columns_stay(spec: SpecFields, path: str, step: Fields) -> Iterator[SpecProblem]:
    """A step must not name the column with the keys."""
    named = {*step.drop, *(name for pair in step.rename for name in pair)}
    for name in sorted(named & {spec.key_field or KEY_COLUMN, KEY_COLUMN}):
        text = f"{name} is the column of keys, which stays what it is"
        yield SpecProblem(f"{path}.fields", text, "rekey gives rows new keys")


MAKE_ROWS = ("map", "flat_map")
KEY_COLUMN: Final = "__key__"


@_rule("output_extension")
def _indexes_list_shards_as_they_are(spec: SpecFields) -> Iterator[SpecProblem]:
    if codec_of(spec.output_extension) is None:
        return
    container = container_of(spec.output_extension)
    if container.index is None:
        return
    own = container.suffixes[0]
    if codec_extension(spec.output_extension) not in container.index.codecs:
        usable = [own, *(own + codec for codec in container.index.codecs)]
        yield SpecProblem(
            "output_extension",
            f"{spec.output_extension} shards are not written: the index of {own} shards cannot say "
            "how they are compressed",
            f"use {joined(usable)}",
        )


@_rule("input_extension", "output_extension")
def _tables_have_codecs_of_their_own(spec: SpecFields) -> Iterator[SpecProblem]:
    for name in ("input_extension", "output_extension"):
        extension = getattr(spec, name)
        if codec_of(extension) is not None and is_columnar(extension):
            yield SpecProblem(name, f"{extension} is not supported: columns are compressed inside")


@_rule("input_extension", "output_extension", "strip_final_newline")
def _lines_are_made_of_others(spec: SpecFields) -> Iterator[SpecProblem]:
    if not spec.strip_final_newline:
        return
    made, read = (container_of(name) for name in (spec.output_extension, spec.input_extension))
    if not made.begins_bare or read.begins_bare:
        text = f"cannot be combined with {spec.input_extension} inputs and {spec.output_extension}"
        yield SpecProblem("strip_final_newline", text, "it is for members that become lines")


@_rule("input_extension", "output_extension", "member_defaults")
def _samples_are_made_of_others(spec: SpecFields) -> Iterator[SpecProblem]:
    if not spec.member_defaults:
        return
    made, read = (container_of(name) for name in (spec.output_extension, spec.input_extension))
    if made.schemas is None or made == read:
        text = f"cannot be combined with {spec.input_extension} inputs and {spec.output_extension}"
        yield SpecProblem(
            "member_defaults", text, "it is for members that become samples: .mds, .bin"
        )


@_rule(
    "deduplicate",
    "inputs",
    "mix",
    "input_extension",
    "output_extension",
    "outputs",
    "Config.duplicate_keys",
)
def _equal_records_can_be_found(spec: SpecFields) -> Iterator[SpecProblem]:
    wanted, reaction = spec.deduplicate, spec.config.duplicate_keys
    if wanted is None:
        return
    if spec.weighs_inputs:
        text = "cannot be combined with weights of inputs: copies would count as equal"
        yield SpecProblem("deduplicate", text, "leave out what is equal in a job before this one")
    by = wanted.by if isinstance(wanted.by, str) else "a field"
    if by != "content" and wanted.extensions:
        yield SpecProblem("deduplicate.extensions", "need by: content")
    if by == "key" and reaction != "warn":  # the written-out spec has this value
        text = "cannot be combined with deduplicate by key, which leaves none"
        yield SpecProblem("duplicate_keys", text, "leave one of them out")
    extensions = (spec.input_extension, carrier_extension(spec))
    tables = [each for each in extensions if by == "content" and is_columnar(each)]
    if tables:
        text = f"by content is not supported for {tables[0]} shards yet"
        hint = "by: key does it, or by: {field: ...}; or convert them to .tar first"
        yield SpecProblem("deduplicate.by", text, hint)
    elif by != "key" and reaction == "rename":
        text = f"rename cannot be combined with deduplicate by {by}: keys are chosen before it"
        yield SpecProblem("duplicate_keys", text, "use warn or abort")


@_rule("output_extension", "outputs", "row_group_rows", "row_group_bytes", "output_compression")
def _row_groups_are_of_tables(spec: SpecFields) -> Iterator[SpecProblem]:
    tables = [*dict.fromkeys(t.extension for t in spec.targets if is_columnar(t.extension))]
    for name in ("row_group_rows", "row_group_bytes", "output_compression"):
        if getattr(spec, name) is not None and not tables:
            text = f"cannot be combined with {spec.output_extension}: its shards have no columns"
            yield SpecProblem(name, text)
    if spec.row_group_bytes is not None and not 1 <= spec.row_group_bytes <= 1 << 30:
        yield SpecProblem("row_group_bytes", "is not between 1 and 1GB")
    known = {".parquet": ("lz4", "zstd", "snappy", "gzip", "brotli", "none")}
    for extension in tables:
        codecs = known.get(extension, ("lz4", "zstd", "none"))
        if spec.output_compression not in (None, *codecs):
            text = f'{extension} shards know no "{spec.output_compression}"'
            yield SpecProblem("output_compression", text, f"use {joined(codecs)}")


# --- output --------------------------------------------------------------------------------------


@_rule("output_extension", "output_compression_level")
def _outputs_can_be_encoded(spec: SpecFields) -> Iterator[SpecProblem]:
    codec = codec_of(spec.output_extension)
    try:
        check_writable(spec.output_extension)
    except ValueError as error:
        yield SpecProblem("output_extension", str(error), "use .tar.zst, .tgz or .tar.lz4")
        return
    if spec.output_compression_level is None:
        return
    if codec is None:
        text = f"{spec.output_extension} shards are not compressed"
        yield SpecProblem("output_compression_level", text, 'e.g. output_extension: ".tgz"')
        return
    try:
        codec.level_or_default(spec.output_compression_level)
    except ValueError as error:
        yield SpecProblem("output_compression_level", str(error))


@_rule("output_format", "ekm", "ekm_file", "outputs", "keep_shards")
def _outputs_have_names(spec: SpecFields) -> Iterator[SpecProblem]:
    if spec.ekm is not None and spec.ekm_file is not None:
        yield SpecProblem("ekm", "there is an ekm_file, too: only one of them can place records")
    named = spec.has_key_map or spec.outputs or spec.keep_shards
    if spec.output_format is None and not named:
        yield SpecProblem(
            "output_format", "is required", 'e.g. "shard-%06d" (or an external key map: ekm)'
        )


@_rule("output_format", "split", "outputs")
def _split_is_named(spec: SpecFields) -> Iterator[SpecProblem]:
    if not spec.split and not spec.outputs and SPLIT_FIELD in (spec.output_format or ""):
        yield SpecProblem(
            "split", f"is required: output_format has {SPLIT_FIELD}", 'e.g. "split": "train"'
        )


@_rule(*_SIZES)
def _one_size(spec: SpecFields) -> Iterator[SpecProblem]:
    given = _sizes_given(spec)
    if len(given) > 1 and isinstance(spec.output_shard_count, int):
        yield SpecProblem(given[1], f"only one of {joined(given)} can say where shards end")


@_rule("output_shard_size_is", "outputs", *_SIZES)
def _at_most_some_size(spec: SpecFields) -> Iterator[SpecProblem]:
    if spec.output_shard_size_is == "at_most" and not any(t.ends for t in spec.targets):
        yield SpecProblem(
            "output_shard_size_is", "needs output_shard_size", 'as in "output_shard_size": "100MB"'
        )


@_rule("output_format", "ekm", "ekm_file", "outputs", *_SIZES)
def _shards_end_somewhere(spec: SpecFields) -> Iterator[SpecProblem]:
    given = _sizes_given(spec)
    if spec.outputs:
        return
    if spec.has_key_map:
        if "output_shard_count" in given:
            yield SpecProblem(
                "output_shard_count",
                "cannot be combined with an external key map",
                "use output_shard_size or output_shard_records",
            )
        elif not given:
            hint = 'with an external key map, set it (e.g. "100MB") or output_shard_records'
            yield SpecProblem("output_shard_size", _SIZE_NEEDED, hint)
    elif spec.output_format is not None and not given:
        total = _names_count(spec.output_format)
        if total is None or total > _COUNT_UNSIZED_MAX:
            hint = (
                'set it (e.g. "100MB"), output_shard_records or output_shard_count, or give '
                'output_format an end: "shard-{0000..0099}"'
            )
            yield SpecProblem("output_shard_size", _SIZE_NEEDED, hint)


def _names_count(output_format: str) -> int | None:
    return parse_template(output_format.replace(SPLIT_FIELD, "split")).count


def _ends_by_size(spec: SpecFields) -> bool:
    return not spec.keep_shards and any(
        target.count is None and (target.size_bytes is not None or target.records is None)
        for target in spec.targets
    )


def _sizes_given(spec: SpecFields) -> list[str]:
    return [name for name in _SIZES if getattr(spec, name) is not None]


@_rule("output_format", "ekm", "ekm_file", "output_shard_count")
def _enough_names(spec: SpecFields) -> Iterator[SpecProblem]:
    if spec.output_format is None or spec.output_shard_count is None or spec.has_key_map:
        return
    if spec.outputs:
        return
    names = _names_count(spec.output_format)
    wanted = spec.targets[0].count or 0
    if names is not None and names < wanted:
        yield SpecProblem(
            "output_format",
            f"number of shards to be created ({wanted}) exceeds the number of names ({names})",
        )


@_rule("output_format", "output_extension", "ekm", "ekm_file", "ekm_default")
def _outputs_have_the_extension(spec: SpecFields) -> Iterator[SpecProblem]:
    templates = {f"ekm.{template}": template for template in spec.ekm or ()}
    if spec.ekm_default is not None:
        templates["ekm_default"] = spec.ekm_default
    if spec.output_format is not None and not spec.has_key_map and not spec.outputs:
        templates["output_format"] = spec.output_format
    for path, template in templates.items():
        problem = suffix_problem(path, template, "output_extension", spec.output_extension)
        if problem is not None:
            yield problem


@_rule("index", "output_extension")
def _readers_can_read_the_outputs(spec: SpecFields) -> Iterator[SpecProblem]:
    for kind in spec.index:
        extensions = FOR_EXTENSIONS.get(kind)
        if extensions is not None and spec.output_extension not in extensions:
            message = f"{kind} has no index of {spec.output_extension} shards"
            yield SpecProblem("index", message, f"it is for {joined(extensions)}")
    if {"energon", "lhotse"} <= {*spec.index}:
        yield SpecProblem(
            "index", "energon and lhotse give their index of a shard one name: choose one of them"
        )


def _place_rules() -> Iterator[_Rule]:
    """Rules about inputs, joins, several outputs, streams, amending, and the order."""
    of_outputs = (*OUTPUT_RULES, *LATE_RULES, *STREAM_RULES, *AMEND_RULES, *EQUAL_RULES)
    of_parts = (*INPUT_RULES, *JOIN_RULES, *of_outputs, *COMPARE_RULES, *algorithm_rules())
    for fields, problems in of_parts:
        yield _Rule(fields, problems)


# --- external key map ----------------------------------------------------------------------------


@_rule("require")
def _extensions_are_required(spec: SpecFields) -> Iterator[SpecProblem]:
    try:
        _required(spec)
    except OptionError as error:
        yield SpecProblem("require", str(error), error.hint)


def _required(spec: SpecFields) -> Require | None:
    return None if spec.require is None else Require.of(spec.require)


@_rule("transform")
def _numbers_are_known_before_payload_is_changed(spec: SpecFields) -> Iterator[SpecProblem]:
    behind = ""
    for number, step in enumerate(spec.transform.build() if spec.transform is not None else ()):
        if step.needs == "payload":
            behind = step.kind
        elif behind and step.needs_positions:
            yield SpecProblem(
                f"transform.steps[{number}]",
                f"{step.kind} counts records over all shards, which are not known behind {behind}",
                f"put it before {behind}; {{shard_n}} counts in a shard",
            )


@_rule("ekm")
def _key_map_is_clear(spec: SpecFields) -> Iterator[SpecProblem]:
    if spec.ekm is None:
        return
    if not spec.ekm:
        yield SpecProblem("ekm", "must not be empty")
    owners: dict[str, str] = {}
    for template, keys in spec.ekm.items():
        for index, key in enumerate(keys):
            if key in owners:
                yield SpecProblem(
                    f"ekm.{template}[{index}]",
                    f'duplicated key "{key}": it is under "{owners[key]}" already',
                )
            owners.setdefault(key, template)


@_rule("ekm", "ekm_file", "ekm_default", "Config.ekm_missing_key")
def _default_can_be_reached(spec: SpecFields) -> Iterator[SpecProblem]:
    if spec.ekm_default is None:
        return
    if not spec.has_key_map:
        yield SpecProblem("ekm_default", "needs an external key map", "set ekm or ekm_file")
    elif spec.config.ekm_missing_key == "abort":
        yield SpecProblem(
            "ekm_default",
            "no record can go there: a record that the key map does not place aborts the job",
            'set ekm_missing_key to "warn" or "ignore"',
        )


# --- defaults that depend on other fields --------------------------------------------------------


def derived(spec: SpecFields) -> dict[str, object]:
    """Defaults that depend on other fields, for the fields that were not given."""
    values: dict[str, Any] = {}
    given = spec.model_fields_set
    if "output_bck" not in given:
        values["output_bck"] = spec.named_output_bck or spec.input_bck
    if "output_format" not in given and is_stdout(values.get("output_bck", spec.output_bck)):
        values["output_format"] = STREAM_FORMAT
    input_extension = spec.input_extension
    if "input_extension" not in given:
        input_extension = named_extension(spec) or DEFAULT_EXTENSION
        values["input_extension"] = input_extension
    if inputs := with_own_extensions(spec, input_extension):
        values["inputs"] = inputs
    if "output_extension" not in given:
        templates = [*(spec.ekm or ())]
        if not spec.has_key_map:
            templates = [target.template for target in spec.targets]
        suffixes = (archive_extension(template or "") for template in templates)
        values["output_extension"] = next(filter(None, suffixes), input_extension)
    try:
        if required := _required(spec):
            values["require"] = required.options  # specs with the same meaning are equal
    except OptionError:
        pass  # a rule reports it
    if spec.keep_shards and "kind" not in spec.algorithm.model_fields_set:
        values["algorithm"] = algorithm_model().model_validate({"kind": "none"})
    if spec.split and spec.output_format is not None:
        values["output_format"] = spec.output_format.replace(SPLIT_FIELD, spec.split)
    if "max_mem_usage" not in given:
        values["max_mem_usage"] = spec.config.default_max_mem_usage
    own = {
        name: default
        for name, default in spec.algorithm.type.own_defaults().items()
        if getattr(spec.algorithm, name) is None
    }
    if own and "algorithm" not in values:
        values["algorithm"] = spec.algorithm.model_copy(update=own)
    if spec.compatibility == "aistore":
        output_extension = str(values.get("output_extension", spec.output_extension))
        own_of_outputs = (each.output_extension or output_extension for each in spec.outputs)
        own_of_inputs = (each.input_extension or input_extension for each in inputs or spec.inputs)
        values["algorithm"] = as_aistore_orders(
            spec,
            values.get("algorithm", spec.algorithm),
            {input_extension, output_extension, *own_of_inputs, *own_of_outputs},
        )
    return values


# --- fields without effect -----------------------------------------------------------------------

_IGNORED: Final = {
    "dsorter_type": "how records move is chosen from sizes and memory",
    "Config.dsorter_mem_threshold": "how records move is chosen from sizes and memory",
    "Config.call_timeout": "workers do not wait for one another's calls",
    "Config.compression": "nothing is compressed on its way between workers",
    "Config.bundle_multiplier": "there are no streams between nodes to multiply",
    "Config.burst_buffer": "there are no streams between nodes to buffer",
}


def without_effect(spec: SpecFields) -> tuple[dict[str, object], list[str]]:
    """Reset the fields that have no effect to their defaults, with a warning for each."""
    values: dict[str, object] = {}
    reasons: dict[str, str] = {}
    config: dict[str, object] = {}
    for path, reason in _IGNORED.items():
        owner, _, name = path.rpartition(".")
        if getattr(spec.config if owner else spec, name) is not None:
            reasons[path] = reason
            (config if owner else values)[name] = None
    if config:
        values["config"] = spec.config.model_copy(update=config)
    if spec.output_format is not None and spec.has_key_map:
        reasons["output_format"] = "the external key map names the outputs"
        values["output_format"] = None
    if spec.ekm_file_sep != "\t" and spec.ekm_file is None:
        reasons["ekm_file_sep"] = "there is no ekm_file"
        values["ekm_file_sep"] = "\t"
    for name, default in (
        ("output_shard_size_counts", "payload"),
        ("output_shard_size_is", "at_least"),
    ):
        if getattr(spec, name) != default and not _ends_by_size(spec):
            reasons[name] = "shards do not end by their size"
            values[name] = default
    if is_stdout(spec.output_bck):
        for name in ("output_format", *_SIZES):
            one = STREAM_FORMAT if name == "output_format" else None
            if getattr(spec, name) != one:
                reasons[name] = "a stream is one shard, without a name"
                values[name] = one
    algorithm, kind = spec.algorithm, spec.algorithm.kind
    unused: dict[str, object] = {}
    for name, option in known_options().items():
        is_given = getattr(algorithm, name) not in (None, option.default)
        if option.no_effect and is_given and kind not in owners_of(name):
            reasons[f"algorithm.{name}"] = option.no_effect.format(kind=kind)
            unused[name] = option.default
    if unused:
        values["algorithm"] = algorithm.model_copy(update=unused)
    return values, [
        f'"{path.removeprefix("Config.")}" has no effect: {reason}'
        for path, reason in reasons.items()
    ]
