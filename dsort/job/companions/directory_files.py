"""Files that the readers of a container need beside its shards, one set in each directory: the
``index.json`` of MDS. They are part of the result, and become visible with the shards."""

from __future__ import annotations

from collections.abc import Sequence

from dsort.containers.base import Container
from dsort.containers.facets import OutputFile, ShardIndex
from dsort.containers.registry import container_of
from dsort.errors import NamesTakenError
from dsort.job.job import Job
from dsort.naming.names import directory_of
from dsort.pipeline.compile import written_container
from dsort.results.manifest import ManifestOutput
from dsort.spec.model import JobSpec


def containers_named(spec: JobSpec, names: Sequence[str]) -> list[Container]:
    """The container of each of the output shards ``names``. If there are several outputs, it
    follows from the extension of the name."""
    if not spec.outputs:
        return [written_container(spec, spec.output_extension)] * len(names)
    return [container_of(name) for name in names]


def directory_file_names(containers: Sequence[Container], outputs: Sequence[str]) -> list[str]:
    """The names of such files of the ``outputs``. ``containers``: of each of them."""
    found = _with_files(containers, outputs)
    return [f"{directory}{index.name}" for directory, (index, _) in found.items()]


def directory_files(
    containers: Sequence[Container], outputs: Sequence[ManifestOutput]
) -> list[tuple[str, bytes]]:
    """(name, content) of each such file. ``containers``: of each output, with its schema."""
    found = _with_files(containers, [output.name for output in outputs])
    return [
        (
            f"{directory}{index.name}",
            index.of([_file(outputs[place], directory) for place in places]),
        )
        for directory, (index, places) in found.items()
    ]


def _file(output: ManifestOutput, directory: str) -> OutputFile:
    return OutputFile(
        name=output.name.removeprefix(directory),
        records=output.records,
        payload_bytes=output.payload_bytes,
        container_bytes=output.container_bytes,
        file_bytes=output.file_bytes,
        xxh3=output.xxh3,
    )


def _with_files(
    containers: Sequence[Container], outputs: Sequence[str]
) -> dict[str, tuple[ShardIndex, list[int]]]:
    """By directory, sorted: the index of its shards, and the positions of these shards in
    ``outputs``. Only for containers that have an index."""
    found: dict[str, tuple[ShardIndex, list[int]]] = {}
    for place, (container, name) in enumerate(zip(containers, outputs, strict=True)):
        if index := container.index:
            found.setdefault(directory_of(name), (index, []))[1].append(place)
    return dict(sorted(found.items()))


def refuse_beside_inputs(job: Job, names: Sequence[str]) -> None:
    """``NamesTakenError`` if such a file, one of ``names``, would lie beside inputs and replace
    their own file: the inputs could not be read any more."""
    if not job.pipeline.reading.container.index:
        return  # the inputs have no such files
    source, target = job.buckets.identities
    inputs = {directory_of(source.identity(shard.name)) for shard in job.inputs}
    for name in names:
        if directory_of(target.identity(name)) in inputs:
            raise NamesTakenError(
                f"{name} in {job.buckets.outputs.uri} would list the output shards, but input "
                "shards are in the same directory",
                hint="write to another output_bck, or to another directory of output_format",
            )
