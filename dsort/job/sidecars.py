"""The files beside the shards of a job: their names, and how they are staged. These are sidecars,
and files that readers of a container need in each directory, such as the ``index.json`` of MDS."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec import Struct

from dsort.containers.base import Container
from dsort.containers.facets import OutputFile, ShardIndex
from dsort.containers.registry import container_of
from dsort.errors import NamesTakenError, ObjectNotFoundError, SpecError, SpecProblem, StorageError
from dsort.job.job import Job
from dsort.job.setup.collisions import NAMES_CHECKED_EARLY_MAX
from dsort.naming.names import directory_of
from dsort.pipeline.compile import written_container
from dsort.results.layout import shared_name, sidecars_prefix, staged_prefix
from dsort.results.manifest import (
    Manifest,
    ManifestOutput,
    ManifestSidecar,
    StagedSidecar,
    result_shards,
)
from dsort.sidecars.kinds import SIDECARS, SidecarName, sidecar_names
from dsort.spec.model import JobSpec
from dsort.storage.bucket import Bucket
from dsort.storage.small_objects import Staged, parse_as, read_blocks, read_small, stage, stage_file
from dsort.workers.companions import SAMPLES, samples_of, staged_sidecar

if TYPE_CHECKING:
    import sqlite3

    from dsort.sidecars.shard_index import EnergonSample, Part

LASTING: Final = ".nv-meta/dataset.yaml"
"""This file does not list shards. Users write into it how their samples are read."""
SIDECARS_FILE: Final = "sidecars.json"
SIDECAR_BYTES_MAX: Final = 4 << 30
NOTED_BYTES_MAX: Final = 1 << 30
AT_ONCE_MAX: Final = 16
Thing = TypeVar("Thing")
Result = TypeVar("Result")


def early_sidecar_names(job: Job) -> list[str]:
    """Names that sidecars almost certainly get: those of the whole result, and those of the first
    shards, as many as the spec sets. ``SpecError`` if two sidecars have the same name."""
    groups = range(len(job.outcome.names.templates))
    counts = [target.count for target in job.pipeline.targets]
    count = None if None in counts else min(count or 0 for count in counts)
    wanted = min(count or 2, NAMES_CHECKED_EARLY_MAX)
    first = [name for group in groups for name in job.outcome.names.some(group, 0, wanted)]
    sidecars = sidecars_written(job, first)
    refuse_alike(sidecars)
    sure = first if count else first[:1]
    directories = {template.prefix.count("/") for template in job.outcome.names.templates}
    in_one_directory = directories == {name.count("/") for name in first} and len(directories) == 1
    renewed = replaceable_names(job)
    return [
        each.name
        for each in sidecars
        if each.name not in renewed
        and (each.ordinal < len(sure) if each.ordinal >= 0 else in_one_directory or not each.moves)
    ]


def sidecars_written(job: Job, shards: Sequence[str]) -> list[SidecarName]:
    """The sidecars that the job writes if its own shards are called ``shards``: first the sidecars
    of single shards, then the sidecars of the whole result."""
    kinds, base = job.spec.index, job.found.base
    if not kinds:
        return []
    own = [each for each in sidecar_names(kinds, shards) if each.ordinal >= 0]
    before = [shard.name for shard in base.outputs]
    known = {each.name for each in base.sidecars}
    whole = sidecar_names(kinds, [*dict.fromkeys([*before, *shards])])
    listing = [each for each in whole if each.ordinal < 0 and each.name not in {LASTING} & known]
    return [*own, *listing]


def replaceable_names(job: Job) -> frozenset[str]:
    """The names of the files that list the whole result which the job amends; they are
    rewritten."""
    base = job.found.base
    names = [shard.name for shard in base.outputs]
    return frozenset(each.name for each in of_the_whole(base)) | frozenset(
        directory_file_names(containers_named(base.spec, names), names)
    )


def of_the_whole(base: Manifest) -> list[ManifestSidecar]:
    """The sidecars that list the whole of a result, and are rewritten with it."""
    shards = [shard.name for shard in base.outputs]
    wanted = sidecar_names(base.spec.index, shards)
    names = {each.name for each in wanted if each.ordinal < 0} - {LASTING}
    return [each for each in base.sidecars if each.name in names]


def refuse_alike(sidecars: Iterable[SidecarName]) -> None:
    """``SpecError`` if two sidecars have the same name. This is possible for DALI: the name of a
    sidecar has only the part of the shard's name before the first dot."""
    seen: set[str] = set()
    for each in sidecars:
        if each.name in seen:
            problem = SpecProblem(
                "output_format",
                f"two output shards would have the {each.kind} index {each.name}",
                "names have to differ before their first dot",
            )
            raise SpecError([problem])
        seen.add(each.name)


# The bytes of sidecars are known when the output shards are written. Sidecars get their names with
# the shards, and the objects that they replace are kept like objects that shards replace: the
# numbers of sidecars follow those of the output shards.
def stage_sidecars(
    job: Job,
    outputs: Sequence[ManifestOutput],
    whole: Sequence[ManifestOutput],
    *,
    first: int,
) -> list[StagedSidecar]:
    """Stage all sidecars that the job writes, numbered from ``first`` on, and store their list for
    later attempts. ``whole``: all shards of the result, with its own ``outputs``."""
    names = sidecars_written(
        job, [shard.name for shard in outputs] if job.pipeline.result.sidecars else []
    )
    numbered = list(enumerate(names, first))
    of_shards = [(number, each) for number, each in numbered if each.ordinal >= 0]

    def stage(numbered: tuple[int, SidecarName]) -> StagedSidecar:
        job.stop.raise_if_requested()
        return _stage(job, *numbered, outputs, whole)

    staged = [*_at_once(stage, of_shards), *map(stage, numbered[len(of_shards) :])]
    files = (each.staged for each in staged)
    rows = [[each.token, each.name, each.receipt, each.xxh3] for each in files]
    if rows:
        job.attempt.retain(SIDECARS_FILE, json.dumps(rows).encode())
    return staged


def _at_once(do: Callable[[Thing], Result], things: Sequence[Thing]) -> Iterator[Result]:
    """The results of ``do`` for each thing, in order. Several run at a time, because otherwise each
    of thousands of things would wait for a disk or a network."""
    if not things:
        return
    with ThreadPoolExecutor(AT_ONCE_MAX) as threads:
        for at in range(0, len(things), AT_ONCE_MAX):
            yield from threads.map(do, things[at : at + AT_ONCE_MAX])


def noted_sidecars(bucket: Bucket, job_id: str) -> list[Staged]:
    """The sidecars that an earlier attempt has staged; empty if it staged none. ``StorageError`` if
    their list is damaged."""
    place = shared_name(job_id, SIDECARS_FILE)
    try:
        data = read_small(bucket, place, bytes_max=NOTED_BYTES_MAX)
    except ObjectNotFoundError:
        return []
    rows = parse_as(data, place, list[tuple[str, str, str, str]])
    return [Staged(token, name, receipt, xxh3=xxh3) for token, name, receipt, xxh3 in rows]


def _stage(
    job: Job,
    number: int,
    name: SidecarName,
    outputs: Sequence[ManifestOutput],
    whole: Sequence[ManifestOutput],
) -> StagedSidecar:
    bucket, token = job.buckets.outputs, f"{staged_prefix(job.job_id)}{number}"
    if not name.is_database:
        if name.ordinal < 0:
            spec = job.found.base.spec if job.replaces_inputs else job.spec
            data = SIDECARS[name.kind].of_result(name.name, result_shards(spec, whole))
        else:
            data = _stored(job, name.ordinal, name.kind)
        again = job.attempt.is_resumed
        staged = stage(bucket, token, name.name, len(data), [data], may_exist=again)
        return StagedSidecar(name.kind, staged)
    # These load SQLite, for one kind of sidecar.
    import tempfile

    from dsort.sidecars.shard_index import write_energon_database

    with tempfile.TemporaryDirectory(prefix="dsort-sidecar-") as directory:
        path = Path(directory) / "sidecar"
        with _known_samples(job, Path(directory)) as known:
            write_energon_database(path, _samples(job, outputs, whole, known))
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            return StagedSidecar(name.kind, stage_file(bucket, token, name.name, file))


def _samples(
    job: Job,
    outputs: Sequence[ManifestOutput],
    whole: Sequence[ManifestOutput],
    known: KnownSamples,
) -> Iterator[Iterator[EnergonSample]]:
    """The samples of each shard of the result, in output order. Workers stored the samples of
    ``outputs``; those of other shards are in the database of the result that is amended."""
    ordinals = {shard.name: ordinal for ordinal, shard in enumerate(outputs)}

    def stored(shard: ManifestOutput) -> list[bytes]:
        found = [ordinals[shard.name]] if shard.name in ordinals else []
        return [_stored(job, ordinal, SAMPLES) for ordinal in found]

    for number, own in enumerate(_at_once(stored, whole)):
        for data in own:
            yield samples_of(data, f"the samples of {whole[number].name}")
        if not own:
            yield known.of(number)


def _stored(job: Job, ordinal: int, kind: str) -> bytes:
    place = staged_sidecar(sidecars_prefix(job.job_id), ordinal, kind)
    return read_small(job.buckets.outputs, place, bytes_max=SIDECAR_BYTES_MAX)


DATABASE: Final = ".nv-meta/index.sqlite"
_SAMPLES: Final = (
    "SELECT sample_index, sample_key, byte_offset, byte_size FROM samples WHERE tar_file_id = ? "
    "ORDER BY sample_index"
)
_PARTS: Final = (
    "SELECT sample_index, part_name, content_byte_offset, content_byte_size FROM sample_parts "
    "WHERE tar_file_id = ? ORDER BY sample_index, content_byte_offset, rowid"
)


class KnownSamples(Struct, frozen=True):
    """A database that another program may have written; ``what`` names it in errors."""

    database: sqlite3.Connection
    what: str

    def of(self, number: int) -> Iterator[EnergonSample]:
        """The samples of shard ``number`` of the result. ``StorageError`` if they are damaged."""
        import sqlite3

        from dsort.sidecars.shard_index import EnergonSample

        try:
            found = self.database.execute(_PARTS, (number,)).fetchall()
            parts = {
                index: tuple(_part(*row[1:]) for row in rows)
                for index, rows in groupby(found, key=lambda row: row[0])
            }
            for index, key, offset, size_bytes in self.database.execute(_SAMPLES, (number,)):
                _check(key, offset, size_bytes)
                yield EnergonSample(key.encode(), offset, size_bytes, parts.get(index, ()))
        except (sqlite3.Error, TypeError, UnicodeError) as error:
            raise StorageError(
                f"{self.what} is damaged: {error}", hint="dsort did not write this"
            ) from None


def _part(extension: object, offset: object, size_bytes: object) -> Part:
    from dsort.sidecars.shard_index import Part

    _check(extension, offset, size_bytes)
    return Part(str(extension).encode(), offset, size_bytes, b"")  # type: ignore[arg-type]


def _check(name: object, *numbers: object) -> None:
    if type(name) is not str or any(type(number) is not int for number in numbers):
        raise TypeError("a row has values of other types")


@contextmanager
def _known_samples(job: Job, directory: Path) -> Iterator[KnownSamples]:
    """The samples of the result that the job amends, read through a file in ``directory``; none if
    it amends no result. ``StorageError`` if the database is gone."""
    import sqlite3

    bucket, path = job.buckets.outputs, directory / "known"
    what, address = f"{DATABASE} in {bucket.uri}", ":memory:"
    if job.amends:
        address = f"file:{path}?mode=ro&immutable=1"
        try:
            with bucket.open(DATABASE) as opened, path.open("wb") as file:
                file.writelines(read_blocks(opened))
        except ObjectNotFoundError:
            hint = "run the job again, over all inputs"
            raise StorageError(f"{what} is gone", hint=hint) from None
    try:
        with closing(sqlite3.connect(address, uri=True)) as database:
            database.execute("PRAGMA trusted_schema = OFF")
            yield KnownSamples(database, what)
    except sqlite3.Error as error:
        raise StorageError(f"{what} is damaged: {error}") from None


def containers_named(spec: JobSpec, names: Sequence[str]) -> list[Container]:
    """The container of each of the output shards ``names``. If there are several outputs, the
    extension of a name determines the container."""
    if spec.names_suffix:
        return [container_of(".tar")] * len(names)  # views: no files are beside them
    if not spec.outputs:
        return [written_container(spec, spec.output_extension)] * len(names)
    return [container_of(name) for name in names]


def directory_file_names(containers: Sequence[Container], outputs: Sequence[str]) -> list[str]:
    """The names of the files that readers of a container need in each directory of ``outputs``.
    ``containers``: the container of each output."""
    found = _with_files(containers, outputs)
    return [f"{directory}{index.name}" for directory, (index, _) in found.items()]


def directory_files(
    containers: Sequence[Container], outputs: Sequence[ManifestOutput]
) -> list[tuple[str, bytes]]:
    """(name, content) of each file that ``directory_file_names`` names. ``containers``: the
    container of each output, with its schema."""
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
    """For each directory, sorted: the index of its shards, and their positions in ``outputs``. Only
    for containers that have an index."""
    found: dict[str, tuple[ShardIndex, list[int]]] = {}
    for place, (container, name) in enumerate(zip(containers, outputs, strict=True)):
        if index := container.index:
            found.setdefault(directory_of(name), (index, []))[1].append(place)
    return dict(sorted(found.items()))


def refuse_beside_inputs(job: Job, names: Sequence[str]) -> None:
    """``NamesTakenError`` if one of the files ``names``, which list output shards, would replace
    the file that lists input shards of the same directory: inputs cannot be read without that
    file."""
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
