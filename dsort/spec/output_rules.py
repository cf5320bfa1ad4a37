"""Rules about several outputs of a spec."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from dsort.containers.registry import check_writable, codec_of, container_of, is_columnar
from dsort.errors import SpecProblem
from dsort.naming.names import codec_extension
from dsort.naming.overlap import conflicts_among, final_templates
from dsort.naming.templates import SPLIT_FIELD, parse_template
from dsort.sidecars.kinds import FOR_EXTENSIONS
from dsort.spec.algorithms import joined
from dsort.spec.carriers import carrier_extension
from dsort.spec.checks import Rules
from dsort.spec.input_rules import is_read_only, suffix_problem
from dsort.spec.outputs import REST, Output
from dsort.spec.parts import SpecFields
from dsort.storage.ref import PIPE
from dsort.storage.registry import object_store_behind

__all__ = ["rule"]

rule = Rules()

_COUNT_UNSIZED_MAX: Final = 2**31 - 1
_KINDS_OF_ALL: Final = ("energon", "huggingface", "sizes")
"""The kinds of sidecars that list all shards, in one file at the top of the bucket."""
_NAMING: Final = ("output_format", "outputs", "ekm", "ekm_file")
_SIZES: Final = ("output_shard_size", "output_shard_records", "output_shard_count")


@rule
def _outputs_are_alone(spec: SpecFields) -> Iterator[SpecProblem]:
    if not spec.outputs:
        if spec.split_by != "key":
            yield SpecProblem("split_by", "needs outputs that have fractions")
        return
    seen: set[str] = set()
    for number, output in enumerate(spec.outputs):
        if output.name in seen:
            yield SpecProblem(f"outputs[{number}].name", f'"{output.name}" is there twice')
        seen.add(output.name)


@rule
def _records_are_dealt_out(spec: SpecFields) -> Iterator[SpecProblem]:
    by_fraction = any(output.fraction is not None for output in spec.outputs)
    for number, output in enumerate(spec.outputs):
        path = f"outputs[{number}]"
        if output.fraction is not None and output.when is not None:
            yield SpecProblem(path, "has a fraction and a condition", "choose one of them")
        elif output.fraction is None and output.when is None:
            hint = "fraction: 0.1, or when: 'size(\"jpg\") < 5000'"
            yield SpecProblem(path, "has neither a fraction nor a condition", hint)
        elif output.fraction is None and by_fraction:
            text = "has a condition, but another output has a fraction"
            yield SpecProblem(path, text, "all outputs have fractions, or all have conditions")
        if output.when == REST and number + 1 < len(spec.outputs):
            text = "takes all that is left: nothing gets to the outputs behind it"
            yield SpecProblem(f"{path}.when", text, "put it last")
    fractions = [output.fraction or 0.0 for output in spec.outputs]
    total = math.fsum(fractions)
    if by_fraction and abs(total - 1) > 1e-9:
        hint = "the step sample leaves records out" if total < 1 else ""
        yield SpecProblem("outputs", f"the fractions add up to {total:.12g}, not to 1", hint)
    if spec.split_by != "key" and spec.outputs and not by_fraction:
        yield SpecProblem("split_by", "needs outputs that have fractions")


@rule
def _exact_numbers_can_be(spec: SpecFields) -> Iterator[SpecProblem]:
    for name in ("exact", "stratify"):
        if not getattr(spec, name):
            continue
        if not any(output.fraction is not None for output in spec.outputs):
            yield SpecProblem(name, "needs outputs that have fractions")
    if spec.stratify is None:
        return
    from dsort.expressions.nodes import ExpressionError
    from dsort.transforms.strata import MemberClass, class_by

    try:
        by = class_by(spec.stratify)
    except ExpressionError as error:
        yield SpecProblem("stratify", str(error), error.hint)
        return
    are_rows = is_columnar(spec.input_extension) and is_columnar(carrier_extension(spec))
    if are_rows and not isinstance(by, MemberClass):
        text = "is more than the name of a column, which is not supported from tables to tables"
        yield SpecProblem("stratify", text)


@rule
def _expressions_are_right(spec: SpecFields) -> Iterator[SpecProblem]:
    if not spec.outputs and spec.split_by == "key":
        return
    from dsort.expressions.expression import Expression
    from dsort.expressions.nodes import ExpressionError

    texts = [(f"outputs[{number}].when", each.when) for number, each in enumerate(spec.outputs)]
    for path, text in [*texts, ("split_by", spec.split_by)]:
        if text is None or text == REST:
            continue
        try:
            expression = Expression.of(text, wanted="" if path == "split_by" else "bool")
        except ExpressionError as error:
            yield SpecProblem(path, str(error), error.hint)
            continue
        are_rows = is_columnar(spec.input_extension) and is_columnar(carrier_extension(spec))
        if are_rows and expression.refused_for_rows:
            asked = expression.refused_for_rows
            text = f"asks for {asked}, which is not supported from tables to tables"
            yield SpecProblem(path, text)


@rule
def _outputs_have_templates(spec: SpecFields) -> Iterator[SpecProblem]:
    if not spec.outputs:
        return
    given = spec.output_format
    shared = [output for output in spec.outputs if output.output_format is None]
    if shared and given is None:
        hint = f'e.g. output_format: "{SPLIT_FIELD}-%06d" for all of them'
        yield SpecProblem("output_format", f"is required: {shared[0].name} has none", hint)
    elif _several_in_one_bucket(spec, shared) and given is not None and SPLIT_FIELD not in given:
        text = f"is that of {joined([each.name for each in shared])}, so names would be the same"
        yield SpecProblem("output_format", text, f'write {SPLIT_FIELD}: "{SPLIT_FIELD}/{given}"')
        return
    named = [target for target in spec.targets if target.template is not None]
    for target in named:
        path = f"{target.path}output_format" if _own(spec, target.name) else "output_format"
        problem = suffix_problem(path, target.template or "", "output_extension", target.extension)
        if problem is not None:
            yield problem
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


def _several_in_one_bucket(spec: SpecFields, outputs: Sequence[Output]) -> bool:
    return len({(each.output_bck or spec.output_bck).uri for each in outputs}) < len(outputs)


def _own(spec: SpecFields, name: str) -> bool:
    return any(each.name == name and each.output_format is not None for each in spec.outputs)


@rule
def _buckets_of_outputs_can_be_written(spec: SpecFields) -> Iterator[SpecProblem]:
    for number, output in enumerate(spec.outputs):
        ref = output.output_bck
        if ref is None:
            continue
        path = f"outputs[{number}].output_bck"
        if ref.is_stream or ref.scheme == PIPE:
            yield SpecProblem(path, "several outputs are buckets: a stream is the only one")
        elif is_read_only(ref):
            behind = object_store_behind(ref)
            hint = f'write "{behind}"' if behind else "to a directory, or s3://, gs://, az://"
            yield SpecProblem(path, f'"{ref.uri}" can only be read', hint)
    listing = [kind for kind in spec.index if kind in _KINDS_OF_ALL]
    if spec.has_buckets_of_outputs and listing:
        text = f"{joined(listing)} would list the shards of several buckets"
        yield SpecProblem("index", text, "leave it out, or have all outputs in one bucket")


@rule
def _outputs_can_be_encoded(spec: SpecFields) -> Iterator[SpecProblem]:
    """Checks outputs with their own container or codec."""
    for number, output in enumerate(spec.outputs):
        path, extension = f"outputs[{number}]", output.output_extension
        if extension is None:
            if output.output_compression_level is not None:
                text = "needs an output_extension beside it"
                yield SpecProblem(f"{path}.output_compression_level", text)
            continue
        try:
            check_writable(extension)
        except ValueError as error:
            yield SpecProblem(f"{path}.output_extension", str(error))
            continue
        container = container_of(extension)
        codec, level = codec_of(extension), output.output_compression_level
        if codec is not None and container.is_columnar:
            text = f"{extension} is not supported: columns are compressed inside"
            yield SpecProblem(f"{path}.output_extension", text)
        if (
            codec is not None
            and container.index is not None
            and codec_extension(extension) not in container.index.codecs
        ):
            text = "the index of such shards cannot say how they are compressed"
            yield SpecProblem(f"{path}.output_extension", text)
        for kind in spec.index:
            if extension not in FOR_EXTENSIONS.get(kind, (extension,)):
                yield SpecProblem("index", f"{kind} has no index of {extension} shards")
        if level is not None and codec is None:
            text = f"{extension} shards are not compressed"
            yield SpecProblem(f"{path}.output_compression_level", text)
        elif codec is not None:
            try:
                codec.level_or_default(level)
            except ValueError as error:
                yield SpecProblem(f"{path}.output_compression_level", str(error))


@rule
def _shards_of_each_end_somewhere(spec: SpecFields) -> Iterator[SpecProblem]:
    for number, output in enumerate(spec.outputs):
        path = f"outputs[{number}]"
        given = [name for name in _SIZES if getattr(output, name) is not None]
        container = carrier_extension(spec)
        if output.output_shard_size_counts == "file" and is_columnar(container):
            text = f"{container} shards are measured by their payload"
            yield SpecProblem(f"{path}.output_shard_size_counts", text)
        if len(given) > 1 and isinstance(output.output_shard_count, int):
            text = f"only one of {joined(given)} can say where shards end"
            yield SpecProblem(f"{path}.{given[1]}", text)
    for target in spec.targets if spec.outputs else ():
        own = target.size_is != spec.output_shard_size_is
        if own and target.size_is == "at_most" and not target.size_bytes:
            text = "needs output_shard_size"
            yield SpecProblem(f"{target.path}output_shard_size_is", text)
        if target.template is None:
            continue
        names = parse_template(target.template).count
        if not target.ends and (names is None or names > _COUNT_UNSIZED_MAX):
            hint = f"set it for {target.name} or for all, or give the template an end: {{000..099}}"
            yield SpecProblem(f"{target.path}output_shard_size", "must be set", hint)
        if target.count is not None and names is not None and names < target.count:
            text = f"has {names:,} names, but there are to be {target.count:,} shards"
            yield SpecProblem(f"{target.path}output_format", text)


@rule
def _readers_tell_outputs_apart(spec: SpecFields) -> Iterator[SpecProblem]:
    if len(spec.outputs) < 2:
        return
    own: dict[tuple[str, str], str] = {}
    for target in spec.targets:
        if container_of(target.extension).index is None:
            continue
        directory = target.place, (target.template or "").rpartition("/")[0]
        other = own.setdefault(directory, target.name)
        if other != target.name:
            text = f"{target.extension} shards have an index in their directory, which "
            hint = f'each in its own: output_format: "{SPLIT_FIELD}/..."'
            yield SpecProblem("outputs", f"{text}{other} and {target.name} share", hint)


@rule
def _kept_shards_are_in_order(spec: SpecFields) -> Iterator[SpecProblem]:
    kind = spec.algorithm.kind
    if spec.keep_shards and kind != "none":
        text = f"{kind} cannot be combined with keep_shards: records stay in their shards"
        yield SpecProblem("algorithm.kind", text, "use none, or leave it out")
