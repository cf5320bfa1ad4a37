"""Rules about loose files as inputs: what ``ingest`` can be combined with."""

from __future__ import annotations

from collections.abc import Iterator

from dsort.errors import SpecProblem
from dsort.spec.checks import Rules
from dsort.spec.parts import SpecFields

__all__ = ["rule"]

rule = Rules()


@rule
def _files_become_records(spec: SpecFields) -> Iterator[SpecProblem]:
    if spec.ingest is None:
        return
    hint = 'e.g. "file:///data/shards" or "s3://bucket/shards"'
    if spec.named_output_bck is None:
        yield SpecProblem("output_bck", "is required: shards are not written among files", hint)
    if any(source.bucket.is_stream for source in spec.sources):
        yield SpecProblem(
            "input_bck", "cannot be combined with ingest: files are listed, and no stream"
        )
    if spec.input_extension != ".tar":
        text = (
            "cannot be combined with ingest: "
            f'files are read as .tar, not as "{spec.input_extension}"'
        )
        yield SpecProblem("input_extension", text, "leave it out; output_extension may be another")
    for number, each in enumerate(spec.inputs):
        if each.input_extension is not None:
            text = "cannot be combined with ingest: files have no container"
            yield SpecProblem(f"inputs[{number}].input_extension", text)
    for source in spec.sources:
        if source.format.template is not None:
            text = "cannot be combined with ingest: it names shards"
            hint = "use prefix, glob, or objnames"
            yield SpecProblem(f"{source.path}input_format.template", text, hint)
    if spec.weighs_inputs:
        text = "cannot be combined with ingest: inputs are trees of files that are joined"
        yield SpecProblem("mix" if spec.mix is not None else "inputs", text)
    if spec.join is not None:
        yield SpecProblem(
            "join", "cannot be combined with ingest: files of one key are joined already"
        )
    if spec.ingest.pipes and spec.ingest.recipe is None:
        yield SpecProblem("ingest.pipes", "is about lines of a recipe, and there is none")
    if spec.ingest.recipe is not None:
        yield from _recipes_say_it_all(spec)
    if spec.ingest.archives and spec.ingest.layout == "metadata":
        yield SpecProblem("ingest.archives", "cannot be combined with layout: metadata")
    if spec.ingest.class_map is not None and spec.ingest.layout != "folders":
        yield SpecProblem("ingest.class_map", "needs layout: folders, which has classes")
    if spec.ingest.labels is not None and spec.ingest.layout == "folders":
        yield SpecProblem(
            "ingest.labels", "cannot be combined with folders, whose classes are labels"
        )
    names = {source.name for source in spec.sources}
    for name in spec.ingest.members:
        if name not in names:
            yield SpecProblem(f"ingest.members.{name}", f'"{name}" is no input')


def _recipes_say_it_all(spec: SpecFields) -> Iterator[SpecProblem]:
    assert spec.ingest is not None
    also = ("layout", "key", "key_pattern", "dots", "archives", "extensions", "members")
    for name in also:
        if name in spec.ingest.model_fields_set and getattr(spec.ingest, name) != (
            type(spec.ingest).model_fields[name].get_default(call_default_factory=True)
        ):
            yield SpecProblem(
                f"ingest.{name}", "cannot be combined with recipe, which names each member"
            )
    for source in spec.sources:
        if any(value is not None for _, value in source.format):
            text = "cannot be combined with ingest.recipe, which names each object"
            yield SpecProblem(f"{source.path}input_format", text)
