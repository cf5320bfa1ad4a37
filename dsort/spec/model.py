"""``JobSpec``: the description of a job by its user. It is frozen, complete and valid: code with a
``JobSpec`` may rely on every field and every combination of fields."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self

import msgspec
from msgspec import Struct
from pydantic import ValidationInfo, model_validator
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from dsort.errors import SpecError, SpecProblem
from dsort.naming.extensions import DEFAULT_EXTENSION
from dsort.naming.names import VIEW_SUFFIX, archive_extension
from dsort.naming.templates import SPLIT_FIELD
from dsort.sizes import Bytes, Percent, parse_quantity
from dsort.spec import excludes, input_rules, output_rules, record_rules
from dsort.spec.algorithms import algorithm_model, known_options, owners_of
from dsort.spec.input_rules import (
    named_extension,
    with_own_extensions,
)
from dsort.spec.output_rules import SIZES, STREAM_FORMAT, is_stdout
from dsort.spec.part import LATER, Part, UnusableError, usable
from dsort.spec.parts import SpecFields
from dsort.spec.record_rules import as_aistore_orders


def _problems_of(spec: SpecFields) -> list[SpecProblem]:
    """The problems from every rule that ``spec`` breaks."""
    places = (excludes, input_rules, output_rules, record_rules)
    rules = [each for place in places for each in place.rule]
    return [problem for each in rules for problem in usable(each(spec))]


def _take_out(spec: SpecFields, path: str) -> None:
    """Take the field at ``path``, which is wrong, out of ``spec``: reading the field then raises
    ``UnusableError``."""
    owner, _, name = path.replace("Config", "config").rpartition(".")
    part = vars(spec).get(owner) if owner else spec
    if isinstance(part, Part) and name in type(part).model_fields:
        part.model_fields_set.add(name)
        if name != "input_bck":  # rules about other fields may use its default
            vars(part).pop(name, None)


def _settle(spec: SpecFields) -> None:
    """Put the defaults that depend on other fields into ``spec``. A field whose default depends on
    a wrong field is wrong as well."""
    for name, default in _DEFAULTS.items():
        try:
            vars(spec)[name] = default(spec)
        except UnusableError:
            if not spec.gives(name):
                _take_out(spec, name)


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


def _algorithm(spec: SpecFields) -> object:
    algorithm = spec.algorithm
    if (spec.keep_shards or spec.like) and "kind" not in algorithm.model_fields_set:
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
    "algorithm": _algorithm,
    "max_mem_usage": lambda spec: spec.max_mem_usage or spec.config.default_max_mem_usage,
}
"""The default of each field whose default depends on other fields, in the order in which the
defaults are computed."""


def _ends_by_size(spec: SpecFields) -> bool:
    return not (spec.keep_shards or spec.like) and any(
        target.count is None and (target.size_bytes is not None or target.records is None)
        for target in spec.targets
    )


_IGNORED: Final = {
    "dsorter_type": "how records move is chosen from sizes and memory",
    "config.dsorter_mem_threshold": "how records move is chosen from sizes and memory",
    "config.call_timeout": "workers do not wait for one another's calls",
    "config.compression": "nothing is compressed on its way between workers",
    "config.bundle_multiplier": "there are no streams between nodes to multiply",
    "config.burst_buffer": "there are no streams between nodes to buffer",
}


def _reset_unused(spec: SpecFields) -> list[str]:
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
        for name, one in {"output_format": STREAM_FORMAT, **dict.fromkeys(SIZES)}.items():
            if getattr(spec, name) != one:
                yield "", name, one, "a stream is one shard, without a name"
    algorithm, kind = spec.algorithm, spec.algorithm.kind
    for name, option in known_options().items():
        is_given = getattr(algorithm, name) not in (None, option.default)
        if option.no_effect and is_given and kind not in owners_of(name):
            yield "algorithm", name, option.default, option.no_effect.format(kind=kind)


class Draft(Struct):
    """The input of the model from the loader, and the ``warnings`` that the model returns.

    ``wrong``: the paths of fields that are already known to be wrong. ``ais_is_there``: whether
    buckets of provider ``ais`` are in an AIStore cluster; otherwise they are directories.
    ``directory``: the directory of the spec's file; paths in the spec are relative to it."""

    wrong: frozenset[str] = frozenset()
    warnings: list[str] = msgspec.field(default_factory=list)
    ais_is_there: bool = False
    directory: Path | None = None


class JobSpec(SpecFields, defer_build=False):
    """A dsort job: read shards from a bucket, order their records, write new shards."""

    def __repr_args__(self) -> list[tuple[str | None, Any]]:
        """The fields whose values are not their defaults."""
        named = (
            (name, getattr(self, name), each) for name, each in type(self).model_fields.items()
        )
        return [(name, value) for name, value, each in named if value != _default_of(each)]

    @model_validator(mode="after")
    def _settle(self, info: ValidationInfo) -> Self:
        draft = info.context if isinstance(info.context, Draft) else Draft()
        for path in sorted(draft.wrong):
            _take_out(self, path)
        _settle(self)
        problems = _problems_of(self)
        if problems:
            raise SpecError(problems)
        if not draft.wrong:
            draft.warnings.extend(_reset_unused(self))
        return self

    @property
    def memory_limit(self) -> Percent | Bytes:
        """``max_mem_usage``, parsed."""
        return parse_quantity(self.max_mem_usage)

    @property
    def names_extension(self) -> str:
        """The extension that is appended to output names without an archive extension; may be
        empty."""
        return "" if self.is_placed_as_aistore else self.output_extension

    @property
    def names_suffix(self) -> str:
        """The suffix of all output names, behind the extension."""
        return VIEW_SUFFIX if self.output == "view" else ""

    @property
    def input_uri(self) -> str:
        """The source of the job, in words: the URIs of its buckets."""
        return ", ".join(dict.fromkeys(source.bucket.uri for source in self.sources))

    @property
    def reads_streams(self) -> bool:
        """Whether some input can be read only once: standard input, or the output of a program."""
        runs_programs = self.ingest is not None and self.ingest.pipes
        return runs_programs or any(source.bucket.is_stream for source in self.sources)

    @property
    def keys_are_unique(self) -> bool:
        """Whether two records of the result must not have the same key."""
        return (
            self.join is not None
            or bool(self.like)
            or self.config.duplicate_keys not in ("ignore", "warn")
        )

    def with_seed(self, seed: str) -> JobSpec:
        """This spec with ``seed``: the spec of a shuffle without a seed, after one was drawn."""
        algorithm = self.algorithm.model_copy(update={"seed": seed})
        return self.model_copy(update={"algorithm": algorithm})

    def canonical(self) -> dict[str, Any]:
        """The whole spec in JSON types: today's names and places, every default included. Parsing
        it gives an equal spec, and no warning."""
        fields = self.model_dump(mode="json", by_alias=True)
        fields["algorithm"] = self.algorithm.canonical_fields()
        if self.transform is not None:
            fields["transform"] = self.transform.canonical()
        for name, field in type(self).model_fields.items():
            if LATER in field.metadata and getattr(self, name) == _default_of(field):
                del fields[name]
        if self.inputs:
            del fields["input_bck"], fields["input_format"]
        for name in ("inputs", "outputs"):
            if name in fields:
                fields[name] = [_given(each) for each in fields[name]]
        config: dict[str, Any] = fields.pop("Config")
        return fields | config


def _default_of(field: FieldInfo) -> Any:
    return field.get_default(call_default_factory=True, validated_data={})


def _given(part: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a part of a spec that are set."""
    return {
        name: _given(value) if isinstance(value, dict) and name == "join" else value
        for name, value in part.items()
        if value is not None
    }


_built_of = algorithm_model()


def current_job_spec() -> type[JobSpec]:
    """``JobSpec``, rebuilt if an algorithm has been added since it was built."""
    global _built_of
    if algorithm_model() is not _built_of:
        _built_of = algorithm_model()
        JobSpec.model_rebuild(force=True)
    return JobSpec


_EXAMPLES: list[dict[str, Any]] = [
    {
        "input_bck": "images",
        "input_format": {"template": "samples-{00..18}"},
        "output_format": "shuffled-shard-%d",
        "output_shard_size": "100MB",
        "algorithm": {"kind": "shuffle", "seed": 42},
    },
    {
        "input_bck": {
            "name": "images",
            "provider": "aws",
            "prefix": "train",
            "endpoint_url": "http://10.0.0.1:8333",
        },
        "output_bck": "s3://shuffled/train",
        "output_format": "shuffled-%06d",
        "output_shard_size": "1GB",
        "algorithm": {"kind": "shuffle", "seed": 42},
    },
    {
        "input_bck": "file:///data/images",
        "output_bck": "file:///data/sorted",
        "output_format": "by-class-%04d",
        "output_shard_records": 1000,
        "algorithm": {"kind": "content", "extension": ".cls", "content_key_type": "int"},
    },
]


class _Generator(GenerateJsonSchema):
    """Removes the titles of fields, which only repeat their names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a spec in today's names. Rules between the fields are not
    in it; ``dsort spec check`` also checks these."""
    body = current_job_spec().model_json_schema(by_alias=True, schema_generator=_Generator)
    body.pop("title")
    # The model has reactions and limits in Config, like AIStore; a spec has them at the top.
    config = body["properties"].pop("Config")
    body["properties"] |= {**body["$defs"]["JobConfig"]["properties"], "Config": config}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "dsort job spec",
        **body,
        "anyOf": [{"required": ["input_bck"]}, {"required": ["inputs"]}],
        "examples": _EXAMPLES,
    }
