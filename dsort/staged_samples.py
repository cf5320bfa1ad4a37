"""``dsort.ingest``: samples of a dataset, or of any iterable, become shuffled shards.

Processes encode samples in chunks of a fixed size into tars in a staging directory; a job makes the
result from these tars. A chunk is complete or absent, so a second call after a crash encodes only
the missing chunks, and the chunks do not depend on the number of processes.
"""

from __future__ import annotations

import fcntl
import filecmp
import json
import multiprocessing
import os
import shutil
import stat
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import xxhash
from msgspec.structs import replace

from dsort import api
from dsort.containers.tar.header import tar_header, tar_padding
from dsort.containers.tar.scan import END_OF_ARCHIVE
from dsort.errors import DsortError, JobConflictError, SpecError, StorageError, TransformError
from dsort.job.gc import tidy_finished
from dsort.job.setup.resources import workers_here
from dsort.naming.names import KEY_COLUMN, SAMPLE_FIELDS
from dsort.options import RunOptions, default_options, open_with_settings
from dsort.results.job_ids import new_job_id
from dsort.results.layout import journal_prefix, manifest_name
from dsort.results.manifest import parse_manifest
from dsort.results.report import report_of_manifest
from dsort.scratch.nodes import boot_id
from dsort.storage.bucket import Bucket
from dsort.storage.small_objects import read_small
from dsort.user_code.encoding import encoded
from dsort.user_code.frames import BadResultError, check_extension, check_key

if TYPE_CHECKING:
    from multiprocessing.context import ForkProcess

    from dsort.results.report import Event, JobReport
    from dsort.stop_flag import StopFlag

__all__ = ["ingest"]

SAMPLES_A_CHUNK: Final = 512
STATE_FILE: Final = "state.json"
MANIFEST_BYTES_MAX: Final = 4 << 30
STATE_BYTES_MAX: Final = 1 << 20
NAMES: Final = "shard-%06d"
SIZE: Final = "1GB"
_TEMPLATE_SIGNS: Final = frozenset("%{@")

Encode = Callable[[Any], Mapping[str, Any] | None]
_Chunk = Callable[[], Iterator[Any]]


def ingest(
    source: Iterable[Any] | Sequence[Any] | str | Path,
    destination: str,
    *,
    encode: Encode | None = None,
    workers: int | None = None,
    spec: Mapping[str, Any] | None = None,
    scratch: Path | None = None,
    options: RunOptions | None = None,
    on_event: Callable[[Event], None] | None = None,
    stop: StopFlag | None = None,
) -> JobReport:
    """Write the samples of ``source`` as shuffled shards, and return the report of the job.

    ``source``: a dataset (with a length, and items by number), which is read in ``workers``
    processes; an iterable, which is read in this process; or the path or URI of a tree of files,
    which ``ingest`` in ``spec`` describes. ``destination``: a bucket, or a bucket and a template:
    ``s3://b/out-%06d.tar``. ``encode`` returns a mapping like the samples of webdataset: extensions
    to content (bytes, text, numbers, JSON values, images, arrays), and ``__key__`` (default: the
    number of the sample). None leaves the sample out. ``spec``: more fields of a spec, as
    ``{"output_shard_records": 1000}``. ``scratch``: the parent of the staging directory; default:
    the scratch in ``options``, or the directory for temporary files.

    A second call with the same arguments after a crash continues the first: each sample is written
    exactly once, if ``source`` has the same samples in the same order. If the job of the first call
    had finished, the second returns its report. ``TransformError`` names the sample that could not
    be encoded.
    """
    options = options or default_options()
    fields = _fields(destination, spec or {})
    if isinstance(source, (str, Path)):
        if encode is not None:
            raise SpecError("encode is for samples, and not for a tree of files")
        place = str(source) if "://" in str(source) else Path(source).resolve().as_uri()
        wanted = {"ingest": {}, **fields, "input_bck": place}
        how = replace(options, workers=workers or options.workers)
        return api.run(wanted, options=how, on_event=on_event, stop=stop)
    encode = encode or (lambda sample: sample)
    base = scratch or options.scratch or Path(tempfile.gettempdir())
    processes = workers_here(workers or options.workers)
    with _staging(base, fields) as (directory, state):
        chunks = _chunks(source)
        first = [*islice(chunks, 1)]
        if first and not _is_of_before(directory, first[0], encode):
            state = _begin(directory)  # other samples, for the same place
        _stage(directory, chain(first, chunks), encode, processes)
        fields = {**fields, "input_bck": directory.as_uri()}
        fields["algorithm"] = {"seed": state["seed"], **fields["algorithm"]}
        where = {"options": replace(options, workers=processes), "on_event": on_event, "stop": stop}
        return _run(fields, str(state["job_id"]), where)


def _fields(destination: str, more: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the spec, except its input."""
    bucket, slash, last = destination.rpartition("/")
    named = bool(_TEMPLATE_SIGNS & {*last})
    if named and not slash:
        raise SpecError(f"{destination} names no bucket", hint="write BUCKET/TEMPLATE")
    fields = {
        "output_bck": (bucket or "/") if named else destination,
        "output_format": last if named else NAMES,
        "duplicate_keys": "abort",
        **more,
    }
    sizes = ("output_shard_size", "output_shard_records", "output_shard_count")
    if not any(name in fields for name in sizes):
        fields["output_shard_size"] = SIZE
    if fields["output_bck"].startswith(("/", "./", "../")):
        fields["output_bck"] = Path(fields["output_bck"]).resolve().as_uri()
    fields["algorithm"] = {"kind": "shuffle", **fields.get("algorithm", {})}
    return fields


def _run(fields: Mapping[str, Any], job_id: str, where: Mapping[str, Any]) -> JobReport:
    """Run the job, or resume it."""
    options: RunOptions = where["options"]
    bucket = open_with_settings(fields["output_bck"], root=options.root, settings=options.settings)
    if bucket.exists() and bucket.stat_many([manifest_name(job_id)]):
        return _finished(bucket, job_id)
    if bucket.exists() and next(iter(bucket.list(journal_prefix(job_id))), None) is not None:
        return api.resume(job_id, fields["output_bck"], **where)
    return api.run(fields, job_id=job_id, **where)


def _finished(bucket: Bucket, job_id: str) -> JobReport:
    """The report of a job that died after it had written its manifest; its other leftovers are
    removed."""
    data = read_small(bucket, manifest_name(job_id), bytes_max=MANIFEST_BYTES_MAX)
    parse_manifest(data)  # raises if it is damaged
    tidy_finished(bucket, job_id)
    return report_of_manifest(json.loads(data.decode("utf-8", "surrogateescape")), bucket.uri)


# -- staging -------------------------------------------------------------------------------------


@contextmanager
def _staging(base: Path, fields: Mapping[str, Any]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The staging directory for the samples of a destination, and its state. Only this process uses
    the directory. It is removed after the body, unless the body fails."""
    text = json.dumps({"fields": fields, "chunk": SAMPLES_A_CHUNK}, sort_keys=True, default=str)
    digest = xxhash.xxh3_128_hexdigest(text.encode("utf-8", "surrogateescape"))
    directory = base.absolute() / f"dsort-ingest-{digest}"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise StorageError(f"{directory} belongs to another user", hint="use another scratch")
        lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise StorageError(f"cannot stage samples in {directory}: {error.strerror}") from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = f"another process is writing to {fields['output_bck']}"
            raise JobConflictError(text) from None
        yield directory, _state(directory)
        shutil.rmtree(directory)
    finally:
        os.close(lock)


def _state(directory: Path) -> dict[str, Any]:
    """The job id and the seed that an earlier call has chosen, or new ones. After a crash of the
    machine, chunks that did not reach the disk are gone, and no file lists them: then all is staged
    anew."""
    path, boot = directory / STATE_FILE, boot_id()
    try:
        with path.open("rb") as file:
            state = json.loads(file.read(STATE_BYTES_MAX))
        known = all(type(state[name]) is str for name in ("job_id", "seed"))
        if known and state["boot_id"] == boot:
            return dict(state)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    return _begin(directory)


def _begin(directory: Path) -> dict[str, Any]:
    """Empty the directory, and choose a job id and a seed anew. They hold for all chunks."""
    for each in directory.iterdir():
        each.unlink()
    job_id = new_job_id()
    seed = str(xxhash.xxh3_64_intdigest(os.urandom(16)) >> 1)
    state = {"job_id": job_id, "seed": seed, "boot_id": boot_id()}
    part = directory / "state.part"
    part.write_text(json.dumps(state), encoding="utf-8")
    part.replace(directory / STATE_FILE)
    return state


def _is_of_before(directory: Path, first: _Chunk, encode: Encode) -> bool:
    """Whether the staged chunks have the samples of this call. The first chunk is encoded again,
    and compared: otherwise, samples of two calls could be mixed. If the first chunk is missing and
    others exist, the answer is no."""
    there = directory / _chunk_name(0)
    if not there.exists():
        return not any(directory.glob("chunk-*"))
    again = directory / "again.tar"
    process = _started(directory, 0, first, encode, again.name)
    _join(directory, 0, process)
    is_same = filecmp.cmp(there, again, shallow=False)
    again.unlink()
    return is_same


def _started(
    directory: Path, number: int, samples: _Chunk, encode: Encode, name: str
) -> ForkProcess:
    # Nothing of the dataset need be pickled for a fork.
    context = multiprocessing.get_context("fork")
    task = (directory, number, samples, encode, name)
    process = context.Process(target=_encode_chunk, args=task, daemon=True)
    process.start()
    return process


def _stage(directory: Path, chunks: Iterable[_Chunk], encode: Encode, processes: int) -> None:
    """Encode the chunks that the directory lacks."""
    running: deque[tuple[int, ForkProcess]] = deque()
    try:
        for number, samples in enumerate(chunks):
            if (directory / _chunk_name(number)).exists():
                continue
            while len(running) >= processes:
                _join(directory, *running.popleft())
            process = _started(directory, number, samples, encode, _chunk_name(number))
            running.append((number, process))
        while running:
            _join(directory, *running.popleft())
    finally:
        for _, process in running:
            process.kill()
            process.join()


def _chunks(source: Any) -> Iterator[_Chunk]:
    """Functions that return the samples of a chunk, one function for each chunk."""
    if hasattr(source, "__len__") and hasattr(source, "__getitem__"):
        for first in range(0, len(source), SAMPLES_A_CHUNK):
            rows = range(first, min(first + SAMPLES_A_CHUNK, len(source)))
            yield partial(map, source.__getitem__, rows)
        return
    rest = iter(source)
    while chunk := list(islice(rest, SAMPLES_A_CHUNK)):
        yield partial(iter, chunk)


def _chunk_name(number: int) -> str:
    return f"chunk-{number:06d}.tar"


def _join(directory: Path, number: int, process: ForkProcess) -> None:
    process.join()
    if process.exitcode == 0:
        return
    path = directory / f"error-{number}"
    try:
        told = path.read_text(encoding="utf-8", errors="replace")
        path.unlink()
    except OSError:
        last = (number + 1) * SAMPLES_A_CHUNK - 1
        told = (
            f"the process that encoded samples {number * SAMPLES_A_CHUNK:,} to {last:,} ended "
            f"with code {process.exitcode}"
        )
    raise TransformError(told, hint="encoded samples are kept: the same call continues from there")


def _encode_chunk(directory: Path, number: int, samples: _Chunk, encode: Encode, name: str) -> None:
    """Write a chunk, in a process of its own. An error is left in a file."""
    part = directory / f"part-{number}"
    index = first = number * SAMPLES_A_CHUNK
    seen: dict[str, int] = {}
    try:
        with part.open("wb") as file:
            for index, sample in enumerate(samples(), first):
                given = encode(sample)
                if given is None:
                    continue
                key, members = _members(index, given)
                if seen.setdefault(key, index) != index:
                    raise BadResultError(f"it has the key {key!r}, as has sample {seen[key]:,}")
                for extension, data in members:
                    path = f"{key}.{extension}".encode("utf-8", "surrogateescape")
                    file.writelines([tar_header(path, len(data)), data, tar_padding(len(data))])
            file.write(END_OF_ARCHIVE)
        part.replace(directory / name)
    except BaseException as error:  # noqa: BLE001 - the user's code may raise anything
        is_ours = isinstance(error, (DsortError, BadResultError))
        reason = str(error) if is_ours else f"{type(error).__name__}: {error}"
        told = f"sample {index:,} could not be encoded: {reason}"
        (directory / f"error-{number}").write_text(told, encoding="utf-8", errors="replace")
        os._exit(1)  # no exit handler of the parent runs


def _members(index: int, sample: Any) -> tuple[str, list[tuple[str, bytes]]]:
    """(key, members as extension and content) of an encoded sample."""
    if not isinstance(sample, Mapping):
        raise BadResultError(f"it is no mapping of extensions, but a {type(sample).__name__}")
    key = sample.get(KEY_COLUMN, f"{index:09d}")
    check_key(key)
    members = []
    for extension, value in sample.items():
        if extension in SAMPLE_FIELDS:
            continue
        check_extension(extension)
        members.append((extension, encoded(extension, value)))
    if not members:
        raise BadResultError("it has no members")
    return key, members
