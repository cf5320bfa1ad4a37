"""The manifest: the shards of a job, and how they were made. Writing it, at the end, is the commit.

Keys have a fixed order, and each entry of ``inputs`` and ``outputs`` is one line, so that a
petabyte's manifest is quick to write and to search. A manifest that is read back is data from
outside: its fields are checked by the types of a struct.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import IO, Any

from msgspec import Struct, field
from msgspec.structs import asdict, replace

from dsort.data.json_values import Count, Rows, checked, json_bytes, write_json
from dsort.errors import InputError, SpecError
from dsort.order.mixing import Mixing
from dsort.results.layout import job_of, manifest_name
from dsort.results.report import ReactionCount, ReaderCounts, Sample, reader_counts
from dsort.sidecars.base import ResultShards
from dsort.sizes import format_bytes
from dsort.spec.load import parse_spec
from dsort.spec.model import JobSpec
from dsort.storage.bucket import Bucket
from dsort.storage.small_objects import Staged, read_small
from dsort.version import dsort_version

MANIFEST_VERSION = 1
MANIFEST_BYTES_MAX = 4 << 30


class ManifestInput(Struct, frozen=True):
    """One input shard. ``records``: how many it had after stray members and other oddities were
    handled."""

    name: str
    bytes: int
    mtime_ns: int
    etag: str
    records: int


class ManifestOutput(Struct, frozen=True):
    """One output shard. ``xxh3``: XXH3 (64 bits) of the file, as ``xxhsum -H3`` prints it.
    ``decoded_bytes``: its size without its codec; None without a codec. ``output``: the name of its
    output; None if there is only one. ``sha256``: as ``sha256sum`` prints it, if the spec has it in
    ``checksums``."""

    name: str
    records: int
    members: int
    payload_bytes: int
    file_bytes: int
    xxh3: str
    decoded_bytes: int | None = None
    output: str | None = None
    sha256: str | None = None

    @property
    def container_bytes(self) -> int:
        """The size of the shard without its codec."""
        return self.file_bytes if self.decoded_bytes is None else self.decoded_bytes


class ManifestSidecar(Struct, frozen=True):
    """A file beside the output shards; ``kind``: as in ``index`` of the spec."""

    kind: str
    name: str
    file_bytes: int
    xxh3: str


class StagedSidecar(Struct, frozen=True):
    """A staged file beside the output shards, which has no name yet; ``kind``: as in ``index`` of
    the spec, or the kind of a lineage."""

    kind: str
    staged: Staged

    @property
    def listed(self) -> ManifestSidecar:
        """The file as the manifest lists it."""
        staged = self.staged
        return ManifestSidecar(self.kind, staged.name, staged.size_bytes, staged.xxh3)


class ManifestPart(Struct, frozen=True):
    """The part of a result that an earlier job made. ``outputs``: the number of the part's shards,
    which follow the shards of the part before it. ``removed``: files with hashes of the keys that
    were removed from these shards later. ``lineage``: the lineage of these shards, unless they are
    in the lineage of a later part."""

    job_id: str
    spec: JobSpec
    inputs: Sequence[ManifestInput]
    outputs: int
    removed: tuple[str, ...] = ()
    lineage: ManifestSidecar | None = None


class History(Struct, frozen=True):
    """The history of a result that several jobs made. ``amends``: the job whose result this job
    amends; ``removed``: as in a part; ``earlier``: the parts of earlier jobs, without the part of
    this job."""

    amends: str | None = None
    removed: tuple[str, ...] = ()
    earlier: tuple[ManifestPart, ...] = ()


class Manifest(Struct, frozen=True):
    """The content of a manifest. ``totals``: as a manifest has them, perhaps wrong; written totals
    are the sums of ``outputs``."""

    job_id: str
    created: str
    spec: JobSpec
    inputs: Sequence[ManifestInput]
    outputs: Sequence[ManifestOutput]
    index: str | None = None
    sidecars: Sequence[ManifestSidecar] = ()
    lineage: ManifestSidecar | None = None
    history: History = History()
    code: Sequence[Mapping[str, Any]] = ()
    classes: Mapping[str, int] = field(default_factory=dict)
    totals: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def empty(spec: JobSpec) -> Manifest:
        """A manifest of no job."""
        return Manifest("", "", spec, (), ())

    def __repr__(self) -> str:
        shards = f"{len(self.inputs):,} → {len(self.outputs):,} shards"
        return f"<Manifest {self.job_id}: {shards}>"

    def _repr_html_(self) -> str:
        """For a notebook."""
        from dsort.html_tables import fields_html, rows_html

        like = self.spec.like
        head = fields_html(
            f"result of job {self.job_id}",
            [
                ("inputs", f"{len(self.inputs):,} of {self.spec.input_uri}"),
                ("outputs", f"{len(self.outputs):,} in {self.spec.output_bck.uri}"),
                ("records", f"{sum(shard.records for shard in self.outputs):,}"),
                ("algorithm", f"as in {like}" if like else self.spec.algorithm.in_words),
            ],
        )
        rows = (
            (each.name, f"{each.records:,}", format_bytes(each.file_bytes), each.xxh3)
            for each in self.outputs
        )
        return head + rows_html(("shard", "records", "size", "xxh3"), rows, len(self.outputs))

    def parts(self) -> list[Manifest]:
        """For each job that made a part of the result, a manifest as if the result had only this
        part. The last one belongs to this job."""
        found, first = [], 0
        for part in self.history.earlier:
            found.append(
                replace(
                    self,
                    job_id=part.job_id,
                    spec=part.spec,
                    inputs=part.inputs,
                    outputs=self.outputs[first : first + part.outputs],
                    lineage=part.lineage,
                    history=History(self.history.amends, part.removed),
                    code=(),
                )
            )
            first += part.outputs
        last = History(self.history.amends, self.history.removed)
        return [*found, replace(self, outputs=self.outputs[first:], history=last)]

    @property
    def has_removed(self) -> bool:
        """Whether records were removed from the result."""
        return any((self.history.removed, *(part.removed for part in self.history.earlier)))

    @property
    def lineages(self) -> list[ManifestSidecar]:
        """The files whose rows, one after the other, are the lineage of the result."""
        earlier = (part.lineage for part in self.history.earlier)
        return [each for each in (*earlier, self.lineage) if each]

    @property
    def stored_names(self) -> list[str]:
        """The names of all objects of the result: output shards, then the files beside them."""
        index = [self.index] if self.index else []
        return [
            *(each.name for each in self.outputs),
            *index,
            *(each.name for each in self.sidecars),
        ]


class Making(Struct, frozen=True):
    """How a job made the shards in its manifest. ``parse_manifest`` does not read it."""

    move: Mapping[str, Any]
    phase_seconds: Mapping[str, float]
    reactions: Sequence[ReactionCount] = ()
    reactions_file: str = ""
    rejects_file: str = ""
    codec: Mapping[str, object] | None = None
    mixing: Mixing | None = None
    timeline: Sequence[Sample] = ()


# manifest       version of this format: 1
# job_id         as in the manifest's own path, .dsort/<job_id>/manifest.json
# created        when it was committed, RFC 3339, UTC; in microseconds, and later than the results
#                that it replaces or amends. Manifests of the first releases have seconds
# dsort          versions of dsort and Python
# spec           the spec with every default and the seed; can be run again unchanged
# inputs         name, bytes, mtime_ns, etag and records of each input shard, in input order
# outputs        name, records, members, payload_bytes, file_bytes and xxh3 (XXH3-64 of the file,
#                16 hexadecimal digits) of each output shard, in output order; decoded_bytes
#                too, if the outputs have a codec, and sha256, if the spec has it in checksums
# totals         records, members, payload_bytes, file_bytes of all outputs
# readers        of each output: output (its name, "" of the only one), shards, records_min,
#                records_max, and workers, the numbers of readers that divide its shards
#                (world size x workers); absent in manifests of the first releases
# codec          the compression of the outputs: name, library, version and level; null if there
#                is none, absent in manifests of the first releases
# move           how payload moved, and why
# phase_seconds  seconds of each phase up to the manifest
# reactions      kind, count and samples of all that was dropped, kept, renamed or odd
# lineage        kind, name, file_bytes, xxh3 of the file with the origin of each record; null if
#                the spec has no lineage
# reactions_file name of the object with all names of these reactions, one per line; null if
#                there are none, absent in manifests of the first releases
# rejects_file   name of the object with the records at which steps failed; null if there is
#                none, absent in manifests of the first releases
# code           of each step that ran code: step (its number), kind, source_sha256 and packages
#                (versions by name); absent in manifests of the first releases
# index          name of the wids index, if the spec has one
# sidecars       kind, name, file_bytes and xxh3 of each other sidecar; absent in manifests of the
#                first releases
# amends         the job whose result this one amends; null if it made a result of its own,
#                absent in manifests of the first releases, like removed and earlier
# removed        names of files with hashes of keys that were removed from the shards of spec
# earlier        the parts of the result that earlier jobs made, whose shards come first in
#                outputs: by job id, spec, removed, lineage, inputs and outputs (how many)
# classes        of files in folders: the number of each class by name, as in .cls; null if
#                there are none, absent in manifests of the first releases
# mixing         how records were mixed: counts (of each input bin, how many went to each
#                output bin), input_shards, output_shards, input_bins, output_bins,
#                output_bin_shards, chi2, degrees_of_freedom, p_value, verdict
#                (order.mixing); null if there are no records
# timeline       [seconds since the attempt began, phase, bytes of that phase done, bytes a second
#                since the row before it], at most 240 (Timeline)
#
# Readers have to work without `timeline` and `mixing`: manifests of the first releases have none.
def write_manifest(file: IO[bytes], manifest: Manifest, making: Making) -> None:
    """Write the manifest in its stored form. The outputs of ``manifest`` are iterated twice, one by
    one: a million outputs are never in memory at once."""
    totals, readers = _summed(manifest.outputs)
    lineage, history, mixing = manifest.lineage, manifest.history, making.mixing
    content = {
        "manifest": MANIFEST_VERSION,
        "job_id": manifest.job_id,
        "created": manifest.created,
        "dsort": {"dsort": dsort_version(), "python": platform.python_version()},
        "spec": manifest.spec.canonical(),
        "totals": {"input_shards": len(manifest.inputs), **totals},
        "readers": Rows(asdict(each) for each in readers),
        "codec": making.codec,
        "move": making.move,
        "phase_seconds": making.phase_seconds,
        "reactions": [asdict(each) for each in making.reactions],
        "reactions_file": making.reactions_file or None,
        "rejects_file": making.rejects_file or None,
        "code": manifest.code,
        "index": manifest.index,
        "sidecars": _rows(ManifestSidecar, manifest.sidecars),
        "lineage": lineage and asdict(lineage),
        "amends": history.amends,
        "removed": history.removed,
        "earlier": {
            part.job_id: {
                "spec": part.spec.canonical(),
                "outputs": part.outputs,
                "removed": list(part.removed),
                "lineage": part.lineage and asdict(part.lineage),
                "inputs": _rows(ManifestInput, part.inputs),
            }
            for part in history.earlier
        },
        "classes": manifest.classes or None,
        "mixing": mixing and _mixing(mixing.document()),
        "timeline": Rows(making.timeline),
        "inputs": _rows(ManifestInput, manifest.inputs),
        "outputs": _rows(ManifestOutput, manifest.outputs),
    }
    write_json(file, content)


def without_names(data: bytes) -> bytes:
    """A manifest without the names in its ``reactions``; everything else, and its form, stays.
    ``InputError`` if ``data`` is no manifest."""
    content = _json_object(data)
    reactions = content.get("reactions")
    for each in reactions if isinstance(reactions, list) else []:
        if isinstance(each, dict):
            each["samples"] = []
    if "reactions_file" in content:
        content["reactions_file"] = None
    rows = ("readers", "sidecars", "timeline", "inputs", "outputs")
    content |= {name: Rows(content[name]) for name in rows if isinstance(content.get(name), list)}
    if isinstance(content.get("mixing"), dict):
        content["mixing"] = _mixing(content["mixing"])
    parts = content.get("earlier")
    for each in parts.values() if isinstance(parts, dict) else ():
        if isinstance(each, dict) and isinstance(each.get("inputs"), list):
            each["inputs"] = Rows(each["inputs"])
    return json_bytes(content)


def result_shards(spec: JobSpec, outputs: Sequence[ManifestOutput]) -> ResultShards:
    """The output shards, as sidecars list them."""
    splits = {spec.split: [shard.name for shard in outputs]}
    if spec.outputs:
        splits = {
            name: [shard.name for shard in outputs if shard.output == name]
            for name in spec.output_names
        }
    records = {shard.name: shard.records for shard in outputs}
    checksums = [shard.xxh3 for shard in outputs]
    sha256 = [shard.sha256 or "" for shard in outputs]
    return ResultShards(records, splits, checksums, sha256, [each.file_bytes for each in outputs])


def wids_index_bytes(name: str, outputs: Sequence[ManifestOutput], md5: Sequence[str]) -> bytes:
    """A ``wids-shard-index-v1`` JSON (the index of the ``wids`` package). Each ``url`` is relative
    to the index file, and shards are sorted by ``url``."""
    shards = sorted(
        zip(outputs, md5, strict=True),
        key=lambda pair: pair[0].name.encode("utf-8", "surrogateescape"),
    )
    rows = (
        {
            "url": shard.name,
            "md5sum": digest,
            "nsamples": shard.records,
            "filesize": shard.file_bytes,
        }
        for shard, digest in shards
    )
    head = {"__kind__": "wids-shard-index-v1", "wids_version": 1}
    return json_bytes({**head, "name": name, "shardlist": Rows(rows)})


def _mixing(mixing: Mapping[str, object]) -> dict[str, object]:
    """``mixing``, with each row of counts on a line of its own."""
    counts = mixing["counts"]
    assert isinstance(counts, Sequence)
    return {**mixing, "counts": Rows(counts)}


def _rows(kind: type[Struct], shards: Sequence[object]) -> Rows:
    names = kind.__struct_fields__
    values = attrgetter(*names)
    rows = (zip(names, values(shard), strict=True) for shard in shards)
    return Rows({name: value for name, value in row if value is not None} for row in rows)


def _summed(
    outputs: Sequence[ManifestOutput],
) -> tuple[dict[str, int], tuple[ReaderCounts, ...]]:
    """The totals over all outputs, and their readers, in one pass."""
    sums = {"records": 0, "members": 0, "payload_bytes": 0, "file_bytes": 0}

    def seen() -> Iterator[tuple[str, int]]:
        for shard in outputs:
            for name in sums:
                sums[name] += getattr(shard, name)
            yield shard.output or "", shard.records

    readers = reader_counts(seen())
    return {"output_shards": len(outputs), **sums}, readers


class _StoredPart(Struct):
    """A part of a result as its manifest has it."""

    spec: dict[str, Any]
    inputs: tuple[ManifestInput, ...]
    outputs: Count
    removed: tuple[str, ...] | None = None
    lineage: ManifestSidecar | None = None


class _StoredHistory(Struct):
    amends: str | None = None
    removed: tuple[str, ...] | None = None
    earlier: dict[str, _StoredPart] | None = None


class _Stored(_StoredHistory, kw_only=True):
    """The other fields that are read back. Manifests of the first releases lack some."""

    job_id: str
    spec: dict[str, Any]
    inputs: tuple[ManifestInput, ...]
    outputs: tuple[ManifestOutput, ...]
    totals: dict[str, Any]
    created: str = ""
    index: str | None = None
    sidecars: tuple[ManifestSidecar, ...] = ()
    lineage: ManifestSidecar | None = None
    code: tuple[dict[str, Any], ...] | None = None
    classes: dict[str, int] | None = None


def read_manifest(bucket: Bucket, job_id: str) -> Manifest:
    """The manifest of a job in ``bucket``; ``ObjectNotFoundError`` if it has none there."""
    return parse_manifest(read_small(bucket, manifest_name(job_id), bytes_max=MANIFEST_BYTES_MAX))


def parse_manifest(data: bytes) -> Manifest:
    """The manifest in ``data``; ``InputError`` if it is no manifest, or of another version."""
    content = _json_object(data)
    version = content["manifest"]
    if version != MANIFEST_VERSION:
        raise InputError(
            f"this is a manifest of version {version}, and this dsort reads {MANIFEST_VERSION}",
            hint="use the dsort that made it, or a newer one",
        )
    try:
        stored = checked(content, _Stored)
    except ValueError as error:
        raise _no_manifest(str(error)) from None
    parts = tuple(_part_of(job_id, part) for job_id, part in (stored.earlier or {}).items())
    if sum(part.outputs for part in parts) > len(stored.outputs):
        raise _no_manifest("the parts in earlier have more shards than outputs")
    spec = stored.spec
    # Versions that wrote ``created`` in seconds stored a default of ``abort`` that allowed members
    # of one name to lie apart.
    if "." not in stored.created and spec.get("duplicated_records") == "abort":
        spec = {**spec, "duplicated_records": None}
    return Manifest(
        job_id=stored.job_id,
        created=stored.created,
        spec=_spec_of(spec, "its spec"),
        inputs=stored.inputs,
        outputs=stored.outputs,
        index=stored.index,
        sidecars=stored.sidecars,
        lineage=stored.lineage,
        history=History(stored.amends, _names(stored.removed, "removed"), parts),
        code=stored.code or (),
        classes=stored.classes or {},
        totals=stored.totals,
    )


def _part_of(job_id: str, part: _StoredPart) -> ManifestPart:
    where = f"earlier.{job_id}"
    spec, removed = _spec_of(part.spec, f"the spec of {where}"), _names(part.removed, where)
    return ManifestPart(job_id, spec, part.inputs, part.outputs, removed, part.lineage)


def _spec_of(fields: dict[str, Any], what: str) -> JobSpec:
    try:
        return parse_spec(fields).spec
    except SpecError as error:
        raise _no_manifest(f"{what} is not valid: {error}") from None


def _json_object(data: bytes) -> dict[str, Any]:
    try:
        content = json.loads(data.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError):
        raise _no_manifest("it is not JSON") from None
    if not isinstance(content, dict) or "manifest" not in content:
        raise _no_manifest("it has no field manifest")
    return content


def _names(names: tuple[str, ...] | None, where: str) -> tuple[str, ...]:
    if not all(map(job_of, names or ())):
        raise _no_manifest(f"{where} names a file that no job writes")
    return names or ()


def _no_manifest(reason: str) -> InputError:
    return InputError(
        f"this is no manifest of a dsort job: {reason}",
        hint="give the id of a finished job, or the path of its manifest.json",
    )
