"""Compiles a spec to its ``Pipeline``, or to parts of the pipeline that are needed separately."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from dsort.containers.base import Container, ContainerOptions
from dsort.containers.codecs.decoding import DecodingRules
from dsort.containers.registry import codec_of, container_of
from dsort.order.base import NO_PLACES, Algorithm, GivenPlaces
from dsort.order.equal_keys import JoinRule
from dsort.pipeline.pipeline import (
    Deduplication,
    DeduplicationByField,
    Mix,
    OutputForm,
    Pipeline,
    Policies,
    Reading,
    ResultRules,
    StepFailures,
)
from dsort.spec.model import JobSpec
from dsort.spec.target import REST, carrier_extension
from dsort.transforms.base import Step
from dsort.transforms.fields import Require
from dsort.transforms.outputs import KEY, Division, class_by

if TYPE_CHECKING:
    from dsort.spec.more_inputs import Input


def compile_pipeline(
    spec: JobSpec,
    *,
    steps: Sequence[Step],
    placed_by: GivenPlaces = NO_PLACES,
) -> Pipeline:
    """The pipeline of a job with ``spec``. ``steps``: the steps of the spec, with the files that
    they name already read; ``placed_by``: the key map or the other result, already read."""
    carrier, join = written_container(spec, carrier_extension(spec)), _join(spec)
    return Pipeline(
        reading=_reading(spec, placed_by),
        steps=tuple(steps),
        failures=_failures(spec),
        placed_by=placed_by,
        deduplication=_deduplication(spec),
        mix=_mix(spec),
        algorithm=placed_by.ordering(_algorithm(spec, join)),
        join=join,
        division=_division(spec),
        carrier=carrier,
        outputs=_outputs(spec, carrier),
        result=ResultRules(
            checks_content=spec.verify == "content",
            keeps_shards=spec.keep_shards,
            equalizes=spec.equalize is not None,
            sidecars=spec.index,
            lineage=spec.lineage,
            way="" if spec.output == "shards" else spec.output,
            checksums=(spec.checksums,) if spec.checksums else (),
        ),
    )


def container_options(spec: JobSpec) -> ContainerOptions:
    """How the spec wants shards to be read and written."""
    return ContainerOptions(
        key_field=spec.key_field,
        strip_final_newline=spec.strip_final_newline,
        member_defaults=tuple(
            (extension, spec.member_defaults[extension].encode())
            for extension in sorted(spec.member_defaults)
        ),
        row_group_rows=spec.row_group_rows,
        row_group_bytes=spec.row_group_bytes or ContainerOptions().row_group_bytes,
        compression=spec.output_compression or "",
        content_defined_chunks=spec.content_defined_chunks,
    )


def steps_of(spec: JobSpec) -> tuple[Step, ...]:
    """The steps that records pass between reading and ordering."""
    required = () if spec.require is None else (Require.of(spec.require),)
    own = spec.steps
    if spec.key_field and own and _moves_rows(spec):  # no step may drop the column of keys
        from dsort.transforms.fields import Fields

        own = tuple(
            each.keeping(spec.key_field) if isinstance(each, Fields) else each for each in own
        )
    return (*required, *own, *_join_keys(spec))


def _join_keys(spec: JobSpec) -> tuple[Step, ...]:
    """The step that makes the keys by which records are joined, unless records are joined by their
    own keys."""
    joins = spec.inputs if spec.join is not None else ()
    by = tuple((each.name, _joined_by(spec, each)) for each in joins)
    if all(text == "key" for _, text in by):
        return ()
    from dsort.transforms.rekey import JoinKey  # few jobs join

    return (JoinKey(by=by),)


def _reading(spec: JobSpec, placed_by: GivenPlaces) -> Reading:
    options, config = container_options(spec), spec.config
    containers = tuple(container_of(each.extension).with_options(options) for each in spec.sources)
    return Reading(
        names=tuple(each.name for each in spec.sources),
        container=container_of(spec.input_extension).with_options(options),
        containers=containers if len({*containers}) > 1 else containers[:1],
        decoding=DecodingRules(spec.max_expansion, codec_of(spec.input_extension)),
        policies=Policies(
            duplicated_records=config.duplicated_records,
            corrupt_shards=config.corrupt_shards,
            stray_members=config.stray_members,
            ekm_missing_key=config.ekm_missing_key,
            unsafe_names=config.unsafe_names,
            incomplete_shards=config.incomplete_shards,
            concatenated_shards=config.concatenated_shards,
            records_only="wids" in spec.index,
            duplicate_keys="abort" if placed_by.shards else config.duplicate_keys,
        ),
        makes_shards=spec.ingest is not None,
        key_field=spec.key_field,
    )


def _outputs(spec: JobSpec, carrier: Container) -> tuple[OutputForm, ...]:
    forms: list[OutputForm] = []
    for target in spec.targets:
        container = written_container(spec, target.extension)
        is_late = container != carrier and not carrier.is_columnar
        forms.append(OutputForm(container, target, is_late))
    return tuple(forms)


def written_container(spec: JobSpec, extension: str) -> Container:
    """The container of outputs. If outputs store the keys of records as ``__key__``, ``key_field``
    applies only to the inputs."""
    container, options = container_of(extension), container_options(spec)
    inputs = [container_of(each.extension) for each in spec.sources]
    if container.is_columnar:
        stays = inputs[0].is_columnar
    else:
        moves = not any(step.needs == "payload" for step in spec.steps)
        carrier = container_of(carrier_extension(spec))
        stays = moves and container == carrier and container in inputs
    if container.keeps_keys and not stays:
        options = replace(options, key_field="")
    return container.with_options(options)


def _moves_rows(spec: JobSpec) -> bool:
    extensions = (spec.input_extension, carrier_extension(spec))
    return all(container_of(each).is_columnar for each in extensions)


def _failures(spec: JobSpec) -> StepFailures:
    transform = spec.transform
    if transform is None:
        return StepFailures()
    rejects = "payload" if transform.rejects == "payload" else "keys" * transform.rejects
    return StepFailures(transform.on_error, rejects, transform.max_errors)


def _deduplication(spec: JobSpec) -> Deduplication:
    wanted = spec.deduplicate
    if wanted is None:
        return Deduplication()
    keeps_last = wanted.keep == "last"
    if isinstance(wanted.by, str):
        return Deduplication(wanted.by, keeps_last, wanted.extensions)
    from dsort.expressions.expression import Expression  # which most jobs do not need

    value = Expression.of(wanted.by.field, wanted="")
    return DeduplicationByField("field", keeps_last, value=value)


def _mix(spec: JobSpec) -> Mix | None:
    if not spec.weighs_inputs:
        return None
    sources, wanted = spec.sources, spec.mix
    mix = Mix(
        tuple(each.name for each in sources),
        tuple(each.weight for each in sources),
        tuple(each.records for each in sources),
    )
    if wanted is None:
        return mix
    return replace(
        mix,
        total=wanted.records,
        stop=wanted.stop,
        replacement=wanted.replacement,
        seed=wanted.seed,
    )


def _algorithm(spec: JobSpec, join: JoinRule) -> Algorithm:
    """The algorithm that orders records. Where inputs are joined and a single piece of a record
    does not decide its place, this is an algorithm by places, which an earlier pass finds."""
    own = spec.algorithm.build()
    if not join or own.joins:
        return own
    from dsort.order.equal_keys import JoinedPlaces

    return JoinedPlaces(own)


def _join(spec: JobSpec) -> JoinRule:
    if spec.join is None:
        return JoinRule()
    own = [each.join.nonmatch if each.join is not None else None for each in spec.inputs]
    return JoinRule(
        tuple(each.name for each in spec.inputs),
        tuple(each or spec.join.nonmatch for each in own),
        spec.config.duplicate_keys == "drop",
        spec.join.conflict,
        not spec.algorithm.type.joins,
    )


def _joined_by(spec: JobSpec, each: Input) -> str:
    """The key or expression by which the records of an input are joined."""
    assert spec.join is not None
    return (each.join.by if each.join is not None else None) or spec.join.by


def _division(spec: JobSpec) -> Division:
    if not spec.outputs:
        return Division()
    from dsort.expressions.expression import Expression

    names = tuple(each.name for each in spec.outputs)
    if spec.outputs[0].fraction is not None:
        by = None if spec.split_by == KEY else Expression.of(spec.split_by, wanted="")
        fractions = tuple(each.fraction or 0.0 for each in spec.outputs)
        classes = None if spec.stratify is None else class_by(spec.stratify)
        return Division(names, fractions, by=by, exact=spec.exact, classes=classes)
    conditions = [
        None if each.when == REST else Expression.of(each.when or "") for each in spec.outputs
    ]
    return Division(names, conditions=tuple(conditions))
