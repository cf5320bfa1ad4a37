"""``JobSpec``: the description of a job by its user. It is frozen, complete and valid: code with a
``JobSpec`` may rely on every field and every combination of fields."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import msgspec
from msgspec import Struct
from pydantic import ValidationInfo, model_validator
from pydantic.fields import FieldInfo

from dsort.errors import SpecError
from dsort.naming.names import VIEW_SUFFIX
from dsort.sizes import Bytes, Percent, parse_quantity
from dsort.spec import rules
from dsort.spec.algorithms import algorithm_model
from dsort.spec.part import LATER
from dsort.spec.parts import SpecFields
from dsort.transforms.fields import Require


class Draft(Struct):
    """The input of the model from the loader, and the ``warnings`` that the model returns.

    ``wrong``: the paths of fields that are already known to be wrong. ``ais_is_there``: whether
    buckets of provider ``ais`` are in an AIStore cluster; otherwise they are directories.
    ``directory``: of the spec's file, which its paths are relative to."""

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
            rules.take_out(self, path)
        rules.settle(self)
        problems = rules.problems_of(self)
        if problems:
            raise SpecError(problems)
        if not draft.wrong:
            draft.warnings.extend(rules.reset_unused(self))
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
        """The source of the job, in words: the bucket's URI, or those of several."""
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
        if self.require is not None:
            fields["require"] = Require.of(self.require).options
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
