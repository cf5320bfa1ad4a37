"""Compares the sidecars of a result with the present content of the output shards."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import xxhash

from dsort.data.members import MemberTable
from dsort.errors import InputError, ObjectNotFoundError, StorageError
from dsort.job.sidecars import (
    containers_named,
    directory_file_names,
    directory_files,
)
from dsort.results.manifest import Manifest, ManifestOutput, ManifestSidecar, result_shards
from dsort.sidecars.kinds import DATABASE, SIDECARS, SidecarName, sidecar_names
from dsort.sidecars.shard_index import energon_samples
from dsort.storage.bucket import Bucket, MadeBucket, ReadObject
from dsort.storage.small_objects import read_small
from dsort.verification.findings import Findings

SIDECAR_BYTES_MAX: Final = 4 << 30
READ_BYTES: Final = 8 << 20
_WRONG: Final = "does not describe the output shards"


class SidecarCheck:
    """Checks the sidecars of a result, shard by shard and then the rest. ``manifest``: the manifest
    of the part of the result whose shards are checked; ``whole``: the manifest of the whole
    result."""

    def __init__(
        self, manifest: Manifest, whole: Manifest, bucket: Bucket, findings: Findings
    ) -> None:
        self._manifest = whole
        self._part = manifest
        self._bucket = bucket
        self._findings = findings
        names = [shard.name for shard in whole.outputs]
        self._first = names.index(manifest.outputs[0].name) if manifest.outputs else 0
        self._wanted = sidecar_names(whole.spec.index, names)
        self._listed = {each.name: each for each in manifest.sidecars}
        self._of_shards: dict[str, list[SidecarName]] = {}
        for each in self._wanted:
            if each.ordinal >= 0:
                self._of_shards.setdefault(names[each.ordinal], []).append(each)
        self._schemas: dict[str, str] = {}  # directory → schema of the records of its shards

    def check_shard(self, shard: ManifestOutput, members: MemberTable) -> None:
        """Check that the sidecars of one output shard describe its content."""
        if members.own.schema:
            self._schemas.setdefault(_directory(shard.name), members.own.schema)
        for each in self._of_shards.get(shard.name, ()):
            try:
                kind = SIDECARS[each.kind]
                right = kind.of_shard(shard.name, members, shard.file_bytes)
            except InputError as error:
                self._problem(each.name, f"cannot be made for this shard: {error.message}")
                continue
            self._check_content(each.name, right, f"does not describe the content of {shard.name}")

    def check_undrawn(self, shards: Iterable[str]) -> None:
        """Check that the sidecars of ``shards``, which are not read, are there."""
        wanted = [each.name for shard in shards for each in self._of_shards.get(shard, ())]
        self._check_sizes([self._listed[name] for name in wanted if name in self._listed])

    def check_rest(self, *, is_sample: bool) -> None:
        """Check the sidecars of the whole result, and that none is missing from the manifest.
        ``is_sample``: only the size of a lineage is checked."""
        if self._part.lineage is not None and is_sample:
            self._check_sizes([self._part.lineage])
        elif self._part.lineage is not None:
            self._check_bytes(self._part.lineage)
        if self._part.job_id != self._manifest.job_id:
            return  # the check of the last part covers them
        wanted = {each.name for each in self._wanted}
        for name in sorted(wanted.symmetric_difference(self._listed)):
            self._problem(
                name, "is not what the spec asks for" if name not in wanted else _UNLISTED
            )
        result = result_shards(self._manifest.spec, self._manifest.outputs)
        for each in self._wanted:
            if each.ordinal < 0 and not each.is_database:
                self._check_content(each.name, SIDECARS[each.kind].of_result(each.name, result))
        self._check_directory_files()

    def _check_sizes(self, listed: Sequence[ManifestSidecar]) -> None:
        """Check that files which are not read are there, with their sizes."""
        there = self._bucket.stat_many([each.name for each in listed]) if listed else {}
        for each in listed:
            if each.name not in there:
                self._problem(each.name, "is not there")
            else:
                self._compare(each, there[each.name].size_bytes, each.xxh3)

    def _check_content(self, name: str, right: bytes, text: str = _WRONG) -> None:
        """Check that the file ``name`` has the content ``right``; if not, ``text`` is reported."""
        if self._read(name) not in (None, right):
            self._problem(name, text)

    def _check_bytes(
        self, listed: ManifestSidecar, take: Callable[[memoryview], object] = lambda part: None
    ) -> bool:
        """Check that a file, which may be large, has the size and the checksum in the manifest.
        ``take`` receives its bytes. False if it has another size, or is not there."""
        digest = xxhash.xxh3_64()
        try:
            with self._bucket.open(listed.name) as opened:
                size_bytes = opened.info.size_bytes
                for part in _parts(opened) if size_bytes == listed.file_bytes else ():
                    digest.update(part)
                    take(part)
        except ObjectNotFoundError:
            self._problem(listed.name, "is not there")
            return False
        self._compare(listed, size_bytes, digest.hexdigest())
        return size_bytes == listed.file_bytes

    def _check_directory_files(self) -> None:
        """Check the lists of shards that readers of some containers need beside the shards.
        Converted records no longer have their schema: then the schema is not compared."""
        if isinstance(self._bucket, MadeBucket):
            return  # a view has no shards, and so no files beside them
        outputs = self._manifest.outputs
        names = [shard.name for shard in outputs]
        containers = containers_named(self._manifest.spec, names)
        for name in directory_file_names(containers, names):
            found = self._read(name)
            directory = _directory(name)
            by_name = zip(names, containers, strict=True)
            own = [each for shard, each in by_name if _directory(shard) == directory]
            in_files = [each.schemas for each in own if each.schemas and each.schemas.file]
            try:
                schema = self._schemas.get(directory, "")
                if found is not None and in_files:
                    schema = in_files[0].in_file(found)
            except ValueError as error:
                self._problem(name, str(error))
                continue
            if found is None or not schema:
                continue
            by_name = zip(names, containers, strict=True)
            of_records = [
                each.with_schema(schema) if _directory(shard) == directory else each
                for shard, each in by_name
            ]
            right = dict(directory_files(of_records, outputs))
            if found != right[name]:
                self._problem(name, _WRONG)

    @contextmanager
    def samples(self) -> Iterator[SampleCheck | None]:
        """Checks the database of Energon; None if there is no database to read."""
        wanted = {each.name for each in self._wanted if each.is_database}
        listed = [each for name, each in self._listed.items() if name in wanted]
        if not listed:
            yield None
            return
        with tempfile.TemporaryDirectory(prefix="dsort-sidecar-") as directory:
            path = Path(directory) / DATABASE
            with path.open("wb") as file:
                is_whole = self._check_bytes(listed[0], file.write)
            if not is_whole:
                yield None
                return
            uri = f"file:{path}?mode=ro&immutable=1"
            with closing(sqlite3.connect(uri, uri=True)) as database:
                yield SampleCheck(database, listed[0].name, self._first, self._findings)

    def _read(self, name: str) -> bytes | None:
        try:
            data = read_small(self._bucket, name, bytes_max=SIDECAR_BYTES_MAX)
        except ObjectNotFoundError:
            self._problem(name, "is not there")
            return None
        except StorageError as error:
            self._problem(name, error.message)
            return None
        listed = self._listed.get(name)
        if listed is not None:
            self._compare(listed, len(data), xxhash.xxh3_64_hexdigest(data))
        return data

    def _compare(self, listed: ManifestSidecar, size_bytes: int, xxh3: str) -> None:
        if (size_bytes, xxh3) != (listed.file_bytes, listed.xxh3):
            self._problem(listed.name, "has another size or checksum than in the manifest")

    def _problem(self, name: str, text: str) -> None:
        self._findings.problem("index", name, "", text)


def _directory(name: str) -> str:
    return name[: name.rfind("/") + 1]


def _parts(opened: ReadObject) -> Iterator[memoryview]:
    """The bytes of an object, ``READ_BYTES`` at a time."""
    size_bytes = opened.info.size_bytes
    for at in range(0, size_bytes, READ_BYTES):
        part = memoryview(bytearray(min(READ_BYTES, size_bytes - at)))
        opened.read_into(part, at)
        yield part


_UNLISTED: Final = "is not in the manifest, though the spec asks for it"
_KEYS: Final = (
    "SELECT sample_key, byte_offset, byte_size FROM samples WHERE tar_file_id = ? "
    "ORDER BY sample_index"
)
_PARTS: Final = (
    "SELECT sample_index, part_name, content_byte_offset, content_byte_size FROM sample_parts "
    "WHERE tar_file_id = ? ORDER BY sample_index, content_byte_offset, rowid"
)


class SampleCheck:
    """Compares a database of Energon, which is not trusted, with shards of a result. In it, the
    shard with the ordinal 0 has the number ``first``."""

    def __init__(
        self, database: sqlite3.Connection, name: str, first: int, findings: Findings
    ) -> None:
        self._database = database
        self._first = first
        self._name = name
        self._findings = findings
        self._usable = True
        try:
            # Views and triggers of a stranger's file must not call functions with side effects.
            database.execute("PRAGMA trusted_schema = OFF")
            # The fetch is bounded, because the file may have any number of tables.
            tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            self._usable = {"samples", "sample_parts"} <= {row[0] for row in tables.fetchmany(99)}
        except sqlite3.Error:
            self._usable = False
        if not self._usable:
            findings.problem("index", name, "", "is no index of Energon")

    def check_shard(self, ordinal: int, shard: str, members: MemberTable) -> None:
        """Check the rows of one output shard."""
        if not self._usable:
            return
        samples = list(energon_samples(members))
        keys = [(_text(each.key), each.offset, each.size_bytes) for each in samples]
        parts = [
            (index, _text(part.extension), part.offset, part.size_bytes)
            for index, each in enumerate(samples)
            for part in each.parts
        ]
        number = self._first + ordinal
        try:
            same = self._has(_KEYS, number, keys) and self._has(_PARTS, number, parts)
        except sqlite3.Error:
            same = self._usable = False
        if not same:
            self._findings.problem(
                "index", self._name, "", f"does not describe the content of {shard}"
            )

    def _has(self, query: str, ordinal: int, rows: Sequence[tuple[object, ...]]) -> bool:
        # One row more than expected is enough to show that there are too many.
        return self._database.execute(query, (ordinal,)).fetchmany(len(rows) + 1) == rows


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")
