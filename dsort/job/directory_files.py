"""Files that the readers of a container need beside its shards, one set in each directory: the
``index.json`` of MDS. They are part of the result, and appear with the shards."""

from __future__ import annotations

from collections.abc import Sequence

from dsort.containers.base import Container, OutputFile
from dsort.errors import NamesTakenError
from dsort.job.job import Job
from dsort.job.manifest import ManifestOutput

__all__ = ["directory_file_names", "directory_files", "refuse_beside_inputs"]


def directory_file_names(container: Container, outputs: Sequence[str]) -> list[str]:
    """What such files of the ``outputs`` are called."""
    files = container.directory_files(())
    return [f"{directory}{name}" for directory in _directories(outputs) for name in files]


def directory_files(
    container: Container, outputs: Sequence[ManifestOutput]
) -> list[tuple[str, bytes]]:
    """(name, content) of each such file. ``container``: with the schema of the outputs."""
    by_directory: dict[str, list[OutputFile]] = {
        directory: [] for directory in _directories([output.name for output in outputs])
    }
    for output in outputs:
        directory = _directory(output.name)
        by_directory[directory].append(
            OutputFile(
                name=output.name.removeprefix(directory),
                records=output.records,
                payload_bytes=output.payload_bytes,
                container_bytes=output.container_bytes,
                file_bytes=output.file_bytes,
                xxh3=output.xxh3,
            )
        )
    return [
        (f"{directory}{name}", data)
        for directory, files in by_directory.items()
        for name, data in container.directory_files(files).items()
    ]


def refuse_beside_inputs(job: Job, names: Sequence[str]) -> None:
    """``NamesTakenError`` if such a file, one of ``names``, would stand beside inputs, whose own it
    would replace: then nobody could read them any more."""
    if not job.spec.input_container.directory_files(()):
        return  # the inputs have no such files
    source, target = job.bucket_identities
    inputs = {_directory(source.identity(shard.name)) for shard in job.inputs}
    for name in names:
        if _directory(target.identity(name)) in inputs:
            raise NamesTakenError(
                f"{name} in {job.outputs_bucket.uri} would list the output shards, but input "
                "shards are in the same directory",
                hint="write to another output_bck, or to another directory of output_format",
            )


def _directories(names: Sequence[str]) -> list[str]:
    return sorted({_directory(name) for name in names})


def _directory(name: str) -> str:
    return name[: name.rfind("/") + 1]
