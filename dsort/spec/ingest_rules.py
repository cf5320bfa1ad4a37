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
    if spec.ingest.pipes and spec.ingest.recipe is None:
        yield SpecProblem("ingest.pipes", "is about lines of a recipe, and there is none")
    for source in spec.sources if spec.ingest.recipe is not None else ():
        if any(value is not None for _, value in source.format):
            text = "cannot be combined with ingest.recipe, which names each object"
            yield SpecProblem(f"{source.path}input_format", text)
    if spec.ingest.class_map is not None and spec.ingest.layout != "folders":
        yield SpecProblem("ingest.class_map", "needs layout: folders, which has classes")
    names = {source.name for source in spec.sources}
    for name in spec.ingest.members:
        if name not in names:
            yield SpecProblem(f"ingest.members.{name}", f'"{name}" is no input')
