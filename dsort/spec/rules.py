"""Rules between the fields of a spec, defaults that depend on other fields, and fields that have
no effect beside others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

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
from dsort.spec import (
    aistore,
    algorithm_rules,
    amend_rules,
    equal_rules,
    excludes,
    ingest_rules,
    input_rules,
    join_rules,
    late_rules,
    output_rules,
    stream_rules,
)
from dsort.spec.aistore import as_aistore_orders
from dsort.spec.algorithms import (
    Part,
    UnusableError,
    algorithm_model,
    joined,
    known_options,
    owners_of,
)
from dsort.spec.carriers import carrier_extension
from dsort.spec.checks import Rules, usable
from dsort.spec.input_rules import (
    is_read_only,
    named_extension,
    suffix_problem,
    with_own_extensions,
)
from dsort.spec.parts import SpecFields
from dsort.spec.stream_rules import STREAM_FORMAT, is_stdout
from dsort.storage.ref import PIPE
from dsort.storage.registry import object_store_behind
from dsort.transforms.fields import Fields
from dsort.transforms.require import Require

__all__ = ["problems_of", "reset_unused", "settle", "take_out"]

_COUNT_UNSIZED_MAX: Final = 2**31 - 1  # AIStore's limit between bounded and unbounded templates
_SIZES: Final = ("output_shard_size", "output_shard_records", "output_shard_count")
_SIZE_NEEDED = "output shard size must be set (cannot be 0 and cannot be omitted)"


rule = Rules()


# --- buckets -------------------------------------------------------------------------------------


@rule
def _outputs_go_where_one_can_write(spec: SpecFields) -> Iterator[SpecProblem]:
    ref = spec.output_bck
    if ref.scheme == PIPE:
        text = "is required: what a program writes can only be read"
        yield SpecProblem("output_bck", text, 'a bucket, or "-" for standard output')
    if not is_read_only(ref):
        return
    behind = object_store_behind(ref)
    hint = f'write "{behind}"' if behind else "to a directory, or s3://, gs://, az://, ais://"
    if spec.gives("output_bck"):
        yield SpecProblem("output_bck", f'"{ref.uri}" can only be read', hint)
    elif spec.named_output_bck is None:
        yield SpecProblem("output_bck", "is required: the input bucket can only be read", hint)


@rule
def _only_what_is_replaced_gets_stale(spec: SpecFields) -> Iterator[SpecProblem]:
    if spec.remove_stale and not spec.overwrite:
        yield SpecProblem(
            "remove_stale",
            "needs overwrite: without it no result is replaced",
            "set overwrite: true, too (--overwrite)",
        )


# --- containers ----------------------------------------------------------------------------------


@rule
def _inputs_can_be_written_as_outputs(spec: SpecFields) -> Iterator[SpecProblem]:
    for extension in dict.fromkeys(source.extension for source in spec.sources):
        for target in spec.targets:
            if not can_convert(extension, target.extension):
                text = f"{extension} shards cannot be written as {target.extension} yet"
                own = target.extension != spec.output_extension
                yield SpecProblem(f"{target.path * own}output_extension", text)
                break


@rule
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


@rule
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


@rule
def _tables_have_codecs_of_their_own(spec: SpecFields) -> Iterator[SpecProblem]:
    for name in ("input_extension", "output_extension"):
        extension = getattr(spec, name)
        if codec_of(extension) is not None and is_columnar(extension):
            yield SpecProblem(name, f"{extension} is not supported: columns are compressed inside")


@rule
def _lines_are_made_of_others(spec: SpecFields) -> Iterator[SpecProblem]:
    if not spec.strip_final_newline:
        return
    made, read = (container_of(name) for name in (spec.output_extension, spec.input_extension))
    if not made.begins_bare or read.begins_bare:
        text = f"cannot be combined with {spec.input_extension} inputs and {spec.output_extension}"
        yield SpecProblem("strip_final_newline", text, "it is for members that become lines")


@rule
def _samples_are_made_of_others(spec: SpecFields) -> Iterator[SpecProblem]:
    if not spec.member_defaults:
        return
    made, read = (container_of(name) for name in (spec.output_extension, spec.input_extension))
    if made.schemas is None or made == read:
        text = f"cannot be combined with {spec.input_extension} inputs and {spec.output_extension}"
        yield SpecProblem(
            "member_defaults", text, "it is for members that become samples: .mds, .bin"
        )


@rule
def _equal_records_can_be_found(spec: SpecFields) -> Iterator[SpecProblem]:
    wanted = spec.deduplicate
    if wanted is None:
        return
    by = wanted.by
    if by != "content" and wanted.extensions:
        yield SpecProblem("deduplicate.extensions", "need by: content")
    extensions = (spec.input_extension, carrier_extension(spec))
    tables = [each for each in extensions if by == "content" and is_columnar(each)]
    if tables:
        text = f"by content is not supported for {tables[0]} shards yet"
        hint = "by: key does it, or by: {field: ...}; or convert them to .tar first"
        yield SpecProblem("deduplicate.by", text, hint)


@rule
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


@rule
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


@rule
def _outputs_have_names(spec: SpecFields) -> Iterator[SpecProblem]:
    named = spec.has_key_map or spec.outputs or spec.keep_shards
    if spec.output_format is None and not named:
        yield SpecProblem(
            "output_format", "is required", 'e.g. "shard-%06d" (or an external key map: ekm)'
        )


@rule
def _split_is_named(spec: SpecFields) -> Iterator[SpecProblem]:
    if not spec.split and not spec.outputs and SPLIT_FIELD in (spec.output_format or ""):
        yield SpecProblem(
            "split", f"is required: output_format has {SPLIT_FIELD}", 'e.g. "split": "train"'
        )


@rule
def _one_size(spec: SpecFields) -> Iterator[SpecProblem]:
    given = _sizes_given(spec)
    if len(given) > 1 and isinstance(spec.output_shard_count, int):
        yield SpecProblem(given[1], f"only one of {joined(given)} can say where shards end")


@rule
def _at_most_some_size(spec: SpecFields) -> Iterator[SpecProblem]:
    if spec.output_shard_size_is == "at_most" and not any(t.ends for t in spec.targets):
        yield SpecProblem(
            "output_shard_size_is", "needs output_shard_size", 'as in "output_shard_size": "100MB"'
        )


@rule
def _shards_end_somewhere(spec: SpecFields) -> Iterator[SpecProblem]:
    given = _sizes_given(spec)
    if spec.outputs:
        return
    if spec.has_key_map:
        if not given:
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


@rule
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


@rule
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


@rule
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


# --- external key map ----------------------------------------------------------------------------


@rule
def _extensions_are_required(spec: SpecFields) -> Iterator[SpecProblem]:
    try:
        _required(spec)
    except OptionError as error:
        yield SpecProblem("require", str(error), error.hint)


def _required(spec: SpecFields) -> Require | None:
    return None if spec.require is None else Require.of(spec.require)


@rule
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


@rule
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


@rule
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


def problems_of(spec: SpecFields) -> list[SpecProblem]:
    """The problems from every rule that ``spec`` breaks."""
    places = (
        *(excludes, input_rules, ingest_rules, join_rules, output_rules, late_rules, stream_rules),
        *(amend_rules, equal_rules, aistore, algorithm_rules),
    )
    rules = [*rule, *(each for place in places for each in place.rule)]
    return [problem for each in rules for problem in usable(each(spec))]


# --- defaults that depend on other fields --------------------------------------------------------


def take_out(spec: SpecFields, path: str) -> None:
    """Take the field at ``path``, which is wrong, out of ``spec``: to read it then raises
    ``UnusableError``."""
    owner, _, name = path.replace("Config", "config").rpartition(".")
    part = vars(spec).get(owner) if owner else spec
    if isinstance(part, Part) and name in type(part).model_fields:
        part.model_fields_set.add(name)
        if name != "input_bck":  # its default serves rules about other things than the bucket
            vars(part).pop(name, None)


def settle(spec: SpecFields) -> None:
    """Put the defaults that depend on other fields into ``spec``. Those that depend on a field that
    is wrong are wrong as well."""
    for name, default in _DEFAULTS.items():
        try:
            vars(spec)[name] = default(spec)
        except UnusableError:
            if not spec.gives(name):
                take_out(spec, name)


def _output_bck(spec: SpecFields) -> object:
    return spec.output_bck if spec.gives("output_bck") else spec.named_output_bck or spec.input_bck


def _output_format(spec: SpecFields) -> object:
    if not spec.gives("output_format") and is_stdout(spec.output_bck):
        return STREAM_FORMAT
    if spec.split and spec.output_format is not None:
        return spec.output_format.replace(SPLIT_FIELD, spec.split)
    return spec.output_format


def _input_extension(spec: SpecFields) -> object:
    if spec.gives("input_extension"):
        return spec.input_extension
    return named_extension(spec) or DEFAULT_EXTENSION


def _output_extension(spec: SpecFields) -> object:
    if spec.gives("output_extension"):
        return spec.output_extension
    templates = [*(spec.ekm or ())]
    if not spec.has_key_map:
        templates = [target.template or "" for target in spec.targets]
    suffixes = (archive_extension(template) for template in templates)
    return next(filter(None, suffixes), spec.input_extension)


def _require(spec: SpecFields) -> object:
    try:
        required = _required(spec)
    except OptionError:
        return spec.require  # a rule reports it
    return required and required.options  # specs with the same meaning are equal


def _algorithm(spec: SpecFields) -> object:
    algorithm = spec.algorithm
    if spec.keep_shards and "kind" not in algorithm.model_fields_set:
        algorithm = algorithm_model().model_validate({"kind": "none"})
    defaults = algorithm.type.own_defaults()
    own = {name: each for name, each in defaults.items() if getattr(algorithm, name) is None}
    if own:
        algorithm = algorithm.model_copy(update=own)
    return as_aistore_orders(spec, algorithm)


_DEFAULTS: Final[Mapping[str, Callable[[SpecFields], object]]] = {
    "output_bck": _output_bck,
    "input_extension": _input_extension,
    "inputs": with_own_extensions,
    "output_extension": _output_extension,
    "output_format": _output_format,
    "require": _require,
    "algorithm": _algorithm,
    "max_mem_usage": lambda spec: spec.max_mem_usage or spec.config.default_max_mem_usage,
}
"""The value of a field whose default depends on others, in the order in which they are found."""


# --- fields without effect -----------------------------------------------------------------------

_IGNORED: Final = {
    "dsorter_type": "how records move is chosen from sizes and memory",
    "config.dsorter_mem_threshold": "how records move is chosen from sizes and memory",
    "config.call_timeout": "workers do not wait for one another's calls",
    "config.compression": "nothing is compressed on its way between workers",
    "config.bundle_multiplier": "there are no streams between nodes to multiply",
    "config.burst_buffer": "there are no streams between nodes to buffer",
}


def reset_unused(spec: SpecFields) -> list[str]:
    """Reset the fields that have no effect to their defaults. Returns a warning for each."""
    unused = [*_unused(spec)]
    for owner, name, default, _ in unused:
        vars(getattr(spec, owner) if owner else spec)[name] = default
    return [
        f'"{f"{owner}." * (owner == "algorithm")}{name}" has no effect: {reason}'
        for owner, name, _, reason in unused
    ]


def _unused(spec: SpecFields) -> Iterator[tuple[str, str, object, str]]:
    """(owner, name, default, reason) of each field that is set and has no effect."""
    for path, reason in _IGNORED.items():
        owner, _, name = path.rpartition(".")
        if getattr(spec.config if owner else spec, name) is not None:
            yield owner, name, None, reason
    if spec.output_format is not None and spec.has_key_map:
        yield "", "output_format", None, "the external key map names the outputs"
    if spec.ekm_file_sep != "\t" and spec.ekm_file is None:
        yield "", "ekm_file_sep", "\t", "there is no ekm_file"
    sizes = {"output_shard_size_counts": "payload", "output_shard_size_is": "at_least"}
    for name, default in sizes.items():
        if getattr(spec, name) != default and not _ends_by_size(spec):
            yield "", name, default, "shards do not end by their size"
    if is_stdout(spec.output_bck):
        for name, one in {"output_format": STREAM_FORMAT, **dict.fromkeys(_SIZES)}.items():
            if getattr(spec, name) != one:
                yield "", name, one, "a stream is one shard, without a name"
    algorithm, kind = spec.algorithm, spec.algorithm.kind
    for name, option in known_options().items():
        is_given = getattr(algorithm, name) not in (None, option.default)
        if option.no_effect and is_given and kind not in owners_of(name):
            yield "algorithm", name, option.default, option.no_effect.format(kind=kind)
