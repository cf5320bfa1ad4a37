"""Rules about outputs: buckets, containers, names, ends of shards, files beside them. They apply to
the single output at the top level, or to each of several outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, Final

from dsort.containers.registry import (
    can_convert,
    check_writable,
    codec_of,
    container_of,
    is_columnar,
)
from dsort.errors import SpecProblem
from dsort.naming.names import codec_extension
from dsort.naming.templates import SPLIT_FIELD, parse_template
from dsort.sidecars.kinds import kinds_alike, kinds_of
from dsort.spec.algorithms import (
    joined,
)
from dsort.spec.cases import late_reason
from dsort.spec.input_rules import (
    suffix_problem,
)
from dsort.spec.part import Rules
from dsort.spec.parts import SpecFields
from dsort.spec.target import Target, carrier_extension, late_targets
from dsort.storage.ref import PIPE, STREAM, BucketRef
from dsort.storage.registry import object_store_behind, store_of

if TYPE_CHECKING:
    from dsort.spec.outputs import Output

rule = Rules()

SIZES: Final = ("output_shard_size", "output_shard_records", "output_shard_count")
STREAM_FORMAT: Final = "stream-{0..0}"
"""The template of the one shard that goes to standard output."""
_COUNT_UNSIZED_MAX: Final = 2**31 - 1  # AIStore's limit between bounded and unbounded templates
_SHARDS_INSTEAD: Final = "leave out output: view, and the job writes shards"
_SIZE_NEEDED: Final = "output shard size must be set (cannot be 0 and cannot be omitted)"


def is_stdout(bucket: object) -> bool:
    """Whether an output's ``bucket`` is standard output."""
    return isinstance(bucket, BucketRef) and bucket.scheme == STREAM


def _places(spec: SpecFields) -> Iterator[tuple[str, SpecFields | Output]]:
    """(path with a dot, part) of the parts that have fields of outputs: the top level, and each of
    several outputs."""
    yield "", spec
    for number, each in enumerate(spec.outputs):
        yield f"outputs[{number}].", each


def _path(spec: SpecFields, target: Target, name: str) -> str:
    """The path of the field ``name`` for an output: in the output itself, or at the top level."""
    own = dict(_places(spec))[target.path]
    return f"{target.path}{name}" if getattr(own, name) is not None else name


# --- buckets -------------------------------------------------------------------------------------


@rule
def _outputs_go_where_one_can_write(spec: SpecFields) -> Iterator[SpecProblem]:
    for place, part in _places(spec):
        ref, path = part.output_bck, f"{place}output_bck"
        if ref is None:
            continue
        if place and (ref.is_stream or ref.scheme == PIPE):
            yield SpecProblem(path, "a stream can only be the single output of a job")
        elif ref.scheme == PIPE:
            text = "is required: the output of a program can only be read"
            yield SpecProblem(path, text, 'a bucket, or "-" for standard output')
        elif (store := store_of(ref.scheme)) is not None and store.is_read_only:
            behind = object_store_behind(ref)
            hint = f'write "{behind}"' if behind else store.write_hint
            if part.gives("output_bck"):
                yield SpecProblem(path, f'"{ref.uri}" can only be read', hint)
            elif spec.named_output_bck is None:
                text = "is required: the input bucket can only be read"
                yield SpecProblem(path, text, hint)


# --- containers and codecs -----------------------------------------------------------------------


@rule
def _inputs_can_be_written_as_outputs(spec: SpecFields) -> Iterator[SpecProblem]:
    for extension in dict.fromkeys(source.extension for source in spec.sources):
        for target in spec.targets:
            if not can_convert(extension, target.extension):
                text = f"{extension} shards cannot be written as {target.extension} yet"
                own = target.extension != spec.output_extension
                yield SpecProblem(f"{target.path * own}output_extension", text)
                break
    carrier = carrier_extension(spec)
    for source in spec.sources if is_columnar(carrier) else ():
        if is_columnar(source.extension) and codec_of(source.extension) is not None:
            text = f"{source.extension} shards cannot be written as {carrier}: rows are read in "
            hint = "unpack them first, or `dsort convert` them to .tar: columns are compressed"
            path = f"{source.path}input_extension"
            yield SpecProblem(path, f"{text}parts, which a codec prevents", f"{hint} inside")


@rule
def _outputs_can_be_encoded(spec: SpecFields) -> Iterator[SpecProblem]:
    for place, part in _places(spec):
        if part.output_extension is not None:
            yield from _encoding_problems(place, part.output_extension, part)
            yield from _index_problems(place, part.output_extension, spec.index)
        elif part.output_compression_level is not None:
            text = "needs an output_extension beside it"
            yield SpecProblem(f"{place}output_compression_level", text)


def _encoding_problems(
    place: str, extension: str, part: SpecFields | Output
) -> Iterator[SpecProblem]:
    path, level_path = f"{place}output_extension", f"{place}output_compression_level"
    codec, level = codec_of(extension), part.output_compression_level
    if codec is not None and is_columnar(extension):
        text = f"{extension} is not supported: columns are compressed inside"
        yield SpecProblem(path, text)
    try:
        check_writable(extension)
    except ValueError as error:
        yield SpecProblem(path, str(error), "use .tar.zst, .tgz or .tar.lz4")
        return
    if level is None:
        return
    if codec is None:
        text = f"{extension} shards are not compressed"
        yield SpecProblem(level_path, text, 'e.g. output_extension: ".tgz"')
        return
    try:
        codec.level_or_default(level)
    except ValueError as error:
        yield SpecProblem(level_path, str(error))


def _index_problems(place: str, extension: str, kinds: Sequence[str]) -> Iterator[SpecProblem]:
    """Problems of files that list shards: a container's own index, and sidecars of ``kinds``."""
    if codec_of(extension) is not None and (own := container_of(extension)).index is not None:
        codecs = own.index.codecs
        if codec_extension(extension) not in codecs:
            text = (
                f"{extension} shards cannot be written: the index of {own.suffixes[0]} shards "
                "cannot record their compression"
            )
            usable = [own.suffixes[0], *(own.suffixes[0] + codec for codec in codecs)]
            yield SpecProblem(f"{place}output_extension", text, f"use {joined(usable)}")
    is_scanned = not (is_columnar(extension) or codec_extension(extension))
    for each in kinds_of(kinds):
        if not each.reads(extension) or (each.has_shard_files and not is_scanned):
            text = f"{each.kind} has no index of {extension} shards"
            yield SpecProblem("index", text, f"it is for {joined(each.extensions)}")


@rule
def _indexes_have_names_of_their_own(spec: SpecFields) -> Iterator[SpecProblem]:
    for pair in kinds_alike(spec.index, spec.output_extension):
        text = f"{pair[0]} and {pair[1]} would write the same index file: choose one of them"
        yield SpecProblem("index", text)
    templates = {target.template for target in spec.targets if target.template}
    for kind, template in product(kinds_of(spec.index), sorted(templates)):
        # A directory cannot have the name of a file; a store would take both.
        for file in kind.result_files([template]):
            if template.startswith(f"{file}/"):
                text = f"has the directory {file}, which is a file of the index {kind.kind}"
                yield SpecProblem("output_format", text, "write another directory")
    own: dict[tuple[str, str], str] = {}
    for target in spec.targets if len(spec.outputs) > 1 else ():
        if container_of(target.extension).index is None:
            continue
        directory = target.place, (target.template or "").rpartition("/")[0]
        other = own.setdefault(directory, target.name)
        if other != target.name:
            text = f"{target.extension} shards have an index in their directory, which "
            hint = f'give each a directory: output_format: "{SPLIT_FIELD}/..."'
            yield SpecProblem("outputs", f"{text}{other} and {target.name} share", hint)


@rule
def _row_groups_are_of_tables(spec: SpecFields) -> Iterator[SpecProblem]:
    tables = [*dict.fromkeys(t.extension for t in spec.targets if is_columnar(t.extension))]
    known = {".parquet": ("lz4", "zstd", "snappy", "gzip", "brotli", "none")}
    for extension in tables:
        codecs = known.get(extension, ("lz4", "zstd", "none"))
        if spec.output_compression not in (None, *codecs):
            text = f'{extension} shards do not support "{spec.output_compression}"'
            yield SpecProblem("output_compression", text, f"use {joined(codecs)}")


# --- names ---------------------------------------------------------------------------------------


@rule
def _outputs_have_names(spec: SpecFields) -> Iterator[SpecProblem]:
    given, shared = spec.output_format, [*_unnamed(spec)]
    if not spec.outputs:
        if given is None and not (spec.has_key_map or spec.keep_shards or spec.like):
            hint = 'e.g. "shard-%06d" (or an external key map: ekm)'
            yield SpecProblem("output_format", "is required", hint)
        elif not spec.split and SPLIT_FIELD in (given or ""):
            text = f"is required: output_format has {SPLIT_FIELD}"
            yield SpecProblem("split", text, 'e.g. "split": "train"')
    elif shared and given is None:
        hint = f'e.g. output_format: "{SPLIT_FIELD}-%06d" for all of them'
        yield SpecProblem("output_format", f"is required: {shared[0].name} has none", hint)
    elif given is not None and SPLIT_FIELD not in given and _share_a_bucket(spec, shared):
        text = f"is that of {joined([each.name for each in shared])}, so names would be the same"
        yield SpecProblem("output_format", text, f'write {SPLIT_FIELD}: "{SPLIT_FIELD}/{given}"')


def _unnamed(spec: SpecFields) -> Iterator[Output]:
    """The outputs that use the template at the top level."""
    return (each for each in spec.outputs if each.output_format is None)


def _share_a_bucket(spec: SpecFields, outputs: Sequence[Output]) -> bool:
    return len({(each.output_bck or spec.output_bck).uri for each in outputs}) < len(outputs)


@rule
def _outputs_have_the_extension(spec: SpecFields) -> Iterator[SpecProblem]:
    extension = spec.output_extension
    templates = {f"ekm.{template}": (template, extension) for template in spec.ekm or ()}
    if spec.ekm_default is not None:
        templates["ekm_default"] = spec.ekm_default, extension
    for target in spec.targets:
        if target.template is not None:
            path = _path(spec, target, "output_format")
            templates.setdefault(path, (target.template, target.extension))
    for path, (template, extension) in templates.items():
        problem = suffix_problem(path, template, "output_extension", extension)
        if problem is not None:
            yield problem


@rule
def _outputs_have_names_of_their_own(spec: SpecFields) -> Iterator[SpecProblem]:
    if not spec.outputs or (
        SPLIT_FIELD not in (spec.output_format or "") and _share_a_bucket(spec, [*_unnamed(spec)])
    ):
        return  # another rule reports it
    from dsort.naming.overlap import (  # few jobs have several outputs
        conflicts_among,
        final_templates,
    )

    named = [target for target in spec.targets if target.template is not None]
    claims = [
        [
            ((target.bucket or spec.output_bck).uri, each)
            for each in final_templates(target.template or "", target.extension)
        ]
        for target in named
    ]
    for one, other in conflicts_among(claims):
        text = f"may make names that the template of {named[one].name} makes as well"
        hint = f'give each a directory or a prefix of its own: output_format: "{SPLIT_FIELD}/..."'
        yield SpecProblem(f"{named[other].path}output_format", text, hint)


# --- where shards end ----------------------------------------------------------------------------


@rule
def _one_size(spec: SpecFields) -> Iterator[SpecProblem]:
    for place, part in _places(spec):
        given = [name for name in SIZES if getattr(part, name) is not None]
        if len(given) > 1 and isinstance(part.output_shard_count, int):
            text = f"only one of {joined(given)} can say where shards end"
            yield SpecProblem(f"{place}{given[1]}", text)


@rule
def _at_most_some_size(spec: SpecFields) -> Iterator[SpecProblem]:
    for target in spec.targets:
        own = target.size_is != spec.output_shard_size_is
        if own and target.size_is == "at_most" and not target.size_bytes:
            yield SpecProblem(f"{target.path}output_shard_size_is", "needs output_shard_size")


@rule
def _shards_end_somewhere(spec: SpecFields) -> Iterator[SpecProblem]:
    for target in spec.targets:
        if target.template is None:
            if spec.has_key_map and not target.ends:
                hint = 'with an external key map, set it (e.g. "100MB") or output_shard_records'
                yield SpecProblem("output_shard_size", _SIZE_NEEDED, hint)
            continue
        names = parse_template(target.template.replace(SPLIT_FIELD, "split")).count
        is_endless = names is None or names > _COUNT_UNSIZED_MAX
        if is_endless and not (target.ends or spec.like):
            text, end = "must be set", "give the template an end: {000..099}"
            hint = f"set it for {target.name} or for all, or {end}"
            if not target.name:
                text, end = _SIZE_NEEDED, 'give output_format an end: "shard-{0000..0099}"'
                hint = (
                    f'set it (e.g. "100MB"), output_shard_records or output_shard_count, or {end}'
                )
            yield SpecProblem(f"{target.path}output_shard_size", text, hint)
        if target.count is not None and names is not None and names < target.count:
            text = f"has {names:,} names for {target.count:,} shards"
            if not target.name:
                exceeds = f"({target.count}) exceeds the number of names ({names})"
                text = f"number of shards to be created {exceeds}"
            yield SpecProblem(f"{target.path}output_format", text)


@rule
def _late_outputs_can_be_made(spec: SpecFields) -> Iterator[SpecProblem]:
    for target in late_targets(spec):
        why = late_reason(spec)
        if target.counts_file:
            path = _path(spec, target, "output_shard_size_counts")
            text = (
                f"file cannot be combined with {why}: the length of {target.extension} shards is "
                "not known before they are written"
            )
            yield SpecProblem(path, text, "use payload")
        container = container_of(target.extension)
        if container.packed is None and not container.is_columnar:
            text = f"{target.extension} shards cannot be made from shards of another container"
            yield SpecProblem(_path(spec, target, "output_extension"), text)
        if spec.amend is not None and container.index is not None:
            text = (
                f"cannot be combined with {why}: the index of {target.extension} shards covers one "
                "job"
            )
            yield SpecProblem("amend", text, "run the job again, over all inputs")
        if codec_of(target.extension) is None:
            continue
        if container.is_columnar or container.index is not None:
            text = f"{target.extension} cannot be combined with {why}"
            hint = f"use {container.suffixes[0]}, or write it in a job of its own"
            yield SpecProblem(_path(spec, target, "output_extension"), text, hint)


@rule
def _late_outputs_have_no_files_for_each_shard(spec: SpecFields) -> Iterator[SpecProblem]:
    kinds = [each.kind for each in kinds_of(spec.index) if each.has_shard_files]
    if kinds and late_targets(spec):
        text = f"{joined(kinds)} cannot be combined with {late_reason(spec)}"
        yield SpecProblem("index", text, "write shards of one container, or leave it out")


# --- views ---------------------------------------------------------------------------------------


@rule
def _views_point_into_inputs(spec: SpecFields) -> Iterator[SpecProblem]:
    if spec.output != "view":
        return
    inputs = list(dict.fromkeys(source.extension for source in spec.sources))
    for extension in inputs:
        own = container_of(extension)
        if codec_of(extension) is not None or own.is_columnar:
            why = "have no byte addresses of records"
        elif own.schemas is not None and own.schemas.file:
            why = "are described by a file beside them, which a view does not have"
        else:
            continue
        text = f"view does not work: {extension} shards {why}"
        yield SpecProblem("output", text, _SHARDS_INSTEAD)
        return
    for extension in dict.fromkeys(target.extension for target in spec.targets):
        is_other = {container_of(each) for each in inputs} != {container_of(extension)}
        if is_other or codec_of(extension) is not None:
            text = f"view does not work: {inputs[0]} shards would be written as {extension}"
            yield SpecProblem("output", text, "a view has the bytes of its inputs as they are")
            return
    if late_targets(spec):
        text = f"view cannot be combined with {late_reason(spec)}"
        yield SpecProblem("output", text, _SHARDS_INSTEAD)


@rule
def _views_change_no_payload(spec: SpecFields) -> Iterator[SpecProblem]:
    if spec.output != "view":
        return
    for number, step in enumerate(spec.steps):
        if step.needs == "payload":
            text = f"{step.kind} makes payload, and a view has none of its own"
            yield SpecProblem(f"transform.steps[{number}]", text, _SHARDS_INSTEAD)
