"""``JobSpec``: what a user asks a job to do. It is frozen, complete and valid: code that holds a
``JobSpec`` may rely on every field and every combination of fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from pydantic import ValidationInfo, model_validator

from dsort.containers.base import Container, ContainerOptions
from dsort.containers.codecs.base import Codec
from dsort.containers.registry import codec_of, container_of
from dsort.data.joins import JoinRule
from dsort.errors import SpecError
from dsort.order.base import Algorithm
from dsort.sizes import Bytes, Percent, parse_quantity
from dsort.spec import rules
from dsort.spec.algorithms import algorithm_model
from dsort.spec.carriers import carrier_extension
from dsort.spec.inputs import Input
from dsort.spec.outputs import REST
from dsort.spec.parts import SpecFields
from dsort.spec.transform import Transform, step_model
from dsort.transforms.base import Step
from dsort.transforms.fields import Fields
from dsort.transforms.join_key import JoinKey
from dsort.transforms.outputs import KEY, Division
from dsort.transforms.require import Require
from dsort.transforms.strata import class_by

__all__ = ["Draft", "JobSpec", "current_job_spec"]


@dataclass(slots=True)
class Draft:
    """What the loader passes to the model, and the ``warnings`` that the model returns.

    ``unusable``: the paths of fields that are already known to be wrong. ``ais_is_there``: whether
    buckets of provider ``ais`` are in an AIStore cluster; otherwise they are directories."""

    unusable: frozenset[str] = frozenset()
    warnings: list[str] = field(default_factory=list)
    ais_is_there: bool = False


_UNUSED_LEFT_OUT: Final = (
    "ingest",
    "key_field",
    "strip_final_newline",
    "member_defaults",
    "keep_shards",
    "inputs",
    "mix",
    "join",
    "outputs",
    "exact",
    "stratify",
    "deduplicate",
    "lineage",
    "on_shard",
    "amend",
    "equalize",
)


class JobSpec(SpecFields, defer_build=False):
    """A dsort job: read shards from a bucket, order their records, write new shards."""

    def __repr_args__(self) -> list[tuple[str | None, Any]]:
        """The fields that are not their defaults."""
        named = (
            (name, getattr(self, name), each) for name, each in type(self).model_fields.items()
        )
        return [
            (name, value)
            for name, value, each in named
            if value != each.get_default(call_default_factory=True, validated_data={})
        ]

    @model_validator(mode="after")
    def _settle(self, info: ValidationInfo) -> Self:
        draft = info.context if isinstance(info.context, Draft) else Draft()
        self._put(rules.derived(self))
        problems = rules.check(self, draft.unusable)
        if problems:
            raise SpecError(problems)
        kept, warnings = rules.without_effect(self)
        self._put(kept)
        draft.warnings.extend(warnings)
        return self

    def _put(self, values: Mapping[str, object]) -> None:
        # A frozen model refuses assignment, but these defaults depend on other fields.
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def memory_limit(self) -> Percent | Bytes:
        """``max_mem_usage``, parsed."""
        return parse_quantity(self.max_mem_usage)

    @property
    def names_extension(self) -> str:
        """What is appended to output names that have no archive extension; may be empty."""
        return "" if self.is_placed_as_aistore else self.output_extension

    @property
    def input_uri(self) -> str:
        """Where it reads, in words: the bucket's URI, or those of several."""
        return ", ".join(dict.fromkeys(source.bucket.uri for source in self.sources))

    @property
    def reads_streams(self) -> bool:
        """Whether some input can be read only once: standard input, or what a program writes."""
        runs_programs = self.ingest is not None and self.ingest.pipes
        return runs_programs or any(source.bucket.is_stream for source in self.sources)

    @property
    def compared_extensions(self) -> tuple[str, ...] | None:
        """The members by whose content records are compared; none: all of them. None: records are
        not compared by content."""
        wanted = self.deduplicate
        return wanted.extensions if wanted is not None and wanted.by == "content" else None

    @property
    def keys_are_unique(self) -> bool:
        """Whether no two records of the result may have one key."""
        return self.join is not None or self.config.duplicate_keys not in ("ignore", "warn")

    @property
    def steps(self) -> tuple[Step, ...]:
        """What happens to records between reading and ordering them."""
        required = () if self.require is None else (Require.of(self.require),)
        own = self.transform.build() if self.transform is not None else ()
        if self.key_field and self.moves_rows:  # the column of keys stays
            own = tuple(
                each.keeping(self.key_field) if isinstance(each, Fields) else each for each in own
            )
        joins = self.inputs if self.join is not None else ()
        by = tuple((each.name, self.joined_by(each)) for each in joins)
        joined = (JoinKey(by),) if any(text != "key" for _, text in by) else ()
        return (*required, *own, *joined)

    def joined_by(self, each: Input) -> str:
        """What the records of an input are joined by."""
        assert self.join is not None
        return (each.join.by if each.join is not None else None) or self.join.by

    @property
    def worker_algorithm(self) -> Algorithm:
        """The algorithm as workers have it: where records are joined, and no piece alone knows its
        order, one of places that are found first."""
        own = self.algorithm.build()
        if self.join is None or own.joins:
            return own
        from dsort.order.joined_places import JoinedPlaces

        return JoinedPlaces(own)

    @property
    def join_rule(self) -> JoinRule | None:
        """How records of several inputs are joined; None if they are not."""
        if self.join is None:
            return None
        own = [each.join.nonmatch if each.join is not None else None for each in self.inputs]
        return JoinRule(
            tuple(each.name for each in self.inputs),
            tuple(each or self.join.nonmatch for each in own),
            self.config.duplicate_keys == "drop",
            self.join.conflict,
            not self.algorithm.type.joins,
        )

    @property
    def makes_records(self) -> bool:
        """Whether some step makes new records of their payload."""
        return self.transform is not None and self.transform.makes_records

    @property
    def division(self) -> Division | None:
        """How records are dealt out to several outputs; None for one."""
        if not self.outputs:
            return None
        from dsort.expressions.expression import Expression

        names = tuple(each.name for each in self.outputs)
        if self.outputs[0].fraction is not None:
            by = None if self.split_by == KEY else Expression.of(self.split_by, wanted="")
            fractions = tuple(each.fraction or 0.0 for each in self.outputs)
            classes = None if self.stratify is None else class_by(self.stratify)
            return Division(names, fractions, by=by, exact=self.exact, classes=classes)
        conditions = [
            None if each.when == REST else Expression.of(each.when or "") for each in self.outputs
        ]
        return Division(names, conditions=tuple(conditions))

    @property
    def places_by(self) -> str:
        """What decides where records go, but for a key map in a file: the kind of the algorithm,
        unless outputs are chosen by what records say."""
        by_content = bool(self.outputs) and (
            self.outputs[0].fraction is None or self.split_by != KEY or bool(self.stratify)
        )
        return "outputs" if by_content else self.algorithm.places_by

    @property
    def container_options(self) -> ContainerOptions:
        """What the spec says of how shards are read and written."""
        return ContainerOptions(
            key_field=self.key_field,
            strip_final_newline=self.strip_final_newline,
            member_defaults=tuple(
                (extension, self.member_defaults[extension].encode())
                for extension in sorted(self.member_defaults)
            ),
            row_group_rows=self.row_group_rows,
            row_group_bytes=self.row_group_bytes or ContainerOptions().row_group_bytes,
            compression=self.output_compression or "",
        )

    @property
    def input_container(self) -> Container:
        """The container of the inputs."""
        return container_of(self.input_extension).with_options(self.container_options)

    @property
    def input_containers(self) -> tuple[Container, ...]:
        """The container of each input (``sources``)."""
        options = self.container_options
        return tuple(container_of(each.extension).with_options(options) for each in self.sources)

    @property
    def output_container(self) -> Container:
        """The container of the outputs that say no other."""
        return self._written(self.output_extension)

    def _written(self, extension: str) -> Container:
        """The container of outputs. Where the keys of records come to ``__key__``, ``key_field``
        is but about the inputs."""
        container, options = container_of(extension), self.container_options
        inputs = [container_of(each.extension) for each in self.sources]
        stays = container in inputs or (container.is_columnar and inputs[0].is_columnar)
        if container.keeps_keys and not stays:
            options = replace(options, key_field="")
        return container.with_options(options)

    @property
    def target_containers(self) -> tuple[Container, ...]:
        """The container of each output (``targets``)."""
        return tuple(self._written(each.extension) for each in self.targets)

    @property
    def carrier(self) -> Container:
        """What records travel in from where they are read to where they are written (see
        ``carriers``)."""
        return self._written(carrier_extension(self))

    @property
    def written_as(self) -> tuple[Container | None, ...]:
        """What the records of each output are written as; None: as they travel."""
        carrier = self.carrier
        return tuple(None if each == carrier else each for each in self.target_containers)

    @property
    def late(self) -> tuple[bool, ...]:
        """Whether the records of each output (``targets``) are converted as they are written: rows
        of tables are not. To be asked once a job, and not for each shard."""
        rows_stay = self.carrier.is_columnar
        return tuple(each is not None and not rows_stay for each in self.written_as)

    def is_late(self, group: int) -> bool:
        """Whether the records of an output are converted as they are written."""
        return self.late[group if self.outputs else 0]

    @property
    def has_late_outputs(self) -> bool:
        """Whether the records of some output are converted as they are written."""
        return any(self.late)

    @property
    def writes_rows(self) -> bool:
        """Whether some output is of tables."""
        return any(each.is_columnar for each in self.target_containers)

    @property
    def moves_rows(self) -> bool:
        """Whether rows of tables stay rows."""
        return self.input_container.is_columnar and self.carrier.is_columnar

    @property
    def input_codec(self) -> Codec | None:
        """The codec of inputs whose names do not say."""
        return codec_of(self.input_extension)

    @property
    def output_codec(self) -> Codec | None:
        """The codec around the outputs; None if there is none."""
        return codec_of(self.output_extension)

    @property
    def measures_encoded(self) -> bool:
        """Whether shards end by the size of their encoded files: then records are encoded once
        before it is known where."""
        return any(target.is_measured for target in self.targets)

    @property
    def encodes(self) -> bool:
        """Whether there is a codec around some outputs."""
        return any(target.codec is not None for target in self.targets)

    @property
    def output_level(self) -> int:
        """The level of the outputs' codec; 0 if there is none."""
        codec = self.output_codec
        return codec.level_or_default(self.output_compression_level) if codec is not None else 0

    def with_seed(self, seed: str) -> JobSpec:
        """This spec with ``seed``: what a shuffle without one becomes once a seed is drawn."""
        algorithm = self.algorithm.model_copy(update={"seed": seed})
        return self.model_copy(update={"algorithm": algorithm})

    def canonical(self) -> dict[str, Any]:
        """The whole spec as JSON-able values: today's names and places, every default written out.
        Parsing it gives an equal spec, and no warning."""
        fields = self.model_dump(mode="json", by_alias=True)
        fields["algorithm"] = self.algorithm.canonical_fields()
        # What a spec does not use is no part of it: such fields came later than the first specs.
        if self.require is None:
            del fields["require"]
        else:
            fields["require"] = Require.of(self.require).options
        if self.transform is None:
            del fields["transform"]
        else:
            fields["transform"] = self.transform.canonical()
        for name in _UNUSED_LEFT_OUT:
            if not fields[name]:
                del fields[name]
        if self.split_by == KEY:
            del fields["split_by"]
        if self.inputs:
            del fields["input_bck"], fields["input_format"]
        for name in ("inputs", "outputs"):
            if name in fields:
                fields[name] = [_given(each) for each in fields[name]]
        config: dict[str, Any] = fields.pop("Config")
        return fields | config


def _given(part: Mapping[str, Any]) -> dict[str, Any]:
    """What is given of a part of a spec."""
    return {
        name: _given(value) if isinstance(value, dict) and name == "join" else value
        for name, value in part.items()
        if value is not None
    }


_built_of = (algorithm_model(), step_model())


def current_job_spec() -> type[JobSpec]:
    """``JobSpec``, built anew if an algorithm or a step has been added since."""
    global _built_of
    of_today = (algorithm_model(), step_model())
    if of_today != _built_of:
        _built_of = of_today
        Transform.model_rebuild(force=True)
        JobSpec.model_rebuild(force=True)
    return JobSpec
