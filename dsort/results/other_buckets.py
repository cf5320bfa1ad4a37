"""The buckets that outputs of a job have for themselves: notes of which job writes there, and of
its main bucket.

Lease, journal and manifest are in the main bucket alone. So that ``dsort gc`` in another bucket
does not take staged objects there for garbage, the job leaves ``.dsort/<job>/elsewhere.json`` in
it, as long as it has anything there. Once the job is committed, ``result.json`` there has the place
of its manifest. A process that resumes a job, or cleans up after it, touches a bucket only if the
note is there: everyone who can write to the main bucket can have written the spec.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

from dsort.errors import JobConflictError, ObjectNotFoundError, SpecError, StorageError
from dsort.results.journal import JobDirectory
from dsort.results.layout import elsewhere_name, result_name
from dsort.spec.load import parse_spec
from dsort.storage.bucket import Bucket
from dsort.storage.ref import BucketRef
from dsort.storage.routed import Routed, routed_outputs
from dsort.storage.small_objects import read_json

Opened = Callable[[BucketRef], Bucket]
_BYTES_MAX = 1 << 16
_NOTE = elsewhere_name("").rpartition("/")[2]


def note_elsewhere(bucket: Bucket, job_id: str) -> None:
    """Note in all other buckets of ``bucket`` where the job is."""
    _note(bucket, job_id, elsewhere_name(job_id))


def forget_elsewhere(bucket: Bucket, job_id: str) -> None:
    """Remove the notes in other buckets, in which only the job's result is left."""
    for other in _others(bucket).values():
        other.delete(elsewhere_name(job_id))
        other.discard(elsewhere_name(job_id))


def tell_result(bucket: Bucket, job_id: str) -> None:
    """Note in all other buckets of ``bucket`` where the manifest is, which exists by now."""
    _note(bucket, job_id, result_name(job_id))


def _note(bucket: Bucket, job_id: str, name: str) -> None:
    content = json.dumps({"job_id": job_id, "output_uri": bucket.uri}).encode()
    for other in _others(bucket).values():
        other.write(name, content)


def result_elsewhere(bucket: Bucket, job_id: str) -> str:
    """The URI of the bucket with the manifest of a job, from the job's note in ``bucket``.
    ``StorageError`` if dsort did not write the note."""
    found = read_json(bucket, result_name(job_id), bytes_max=_BYTES_MAX)
    uri = found.get("output_uri") if isinstance(found, dict) else None
    if not isinstance(uri, str) or found.get("job_id") != job_id:
        raise StorageError(f"{result_name(job_id)} in {bucket.uri} does not say where the job is")
    return uri


def is_elsewhere(directory: JobDirectory) -> bool:
    """Whether a job has nothing but outputs in the bucket."""
    return _NOTE in directory.parts


def is_note_alone(directory: JobDirectory) -> bool:
    """Whether only the note of such a job is left, as after an aborted job."""
    return directory.parts == {_NOTE}


def refuse_unnoted(bucket: Bucket, job_id: str) -> None:
    """``JobConflictError`` if a bucket of the job has no note of it."""
    for other in _others(bucket).values():
        if not _is_noted(other, bucket, job_id):
            raise JobConflictError(
                f"what is left of job {job_id} in {bucket.uri} says that it writes to {other.uri}, "
                "but nothing of it is there",
                hint="start it again",
            )


def outputs_left(
    main: Bucket, job_id: str, spec: Mapping[str, Any], opened: Opened | None
) -> Bucket:
    """The buckets that a job whose journal has ``spec`` has written to, as one; ``main`` itself if
    there is no other. ``StorageError`` if one cannot be opened; ``opened``: None opens none."""
    try:
        targets = parse_spec(dict(spec)).spec.targets
    except SpecError:
        return main
    own = {target.place: target.bucket for target in targets if target.bucket}
    others = {name: opened(ref) for name, ref in own.items() if opened}
    noted = {name: each for name, each in others.items() if _is_noted(each, main, job_id)}
    return routed_outputs(main, noted) if own else main


def _others(bucket: Bucket) -> Mapping[str, Bucket]:
    return bucket.others if isinstance(bucket, Routed) else {}


def _is_noted(other: Bucket, main: Bucket, job_id: str) -> bool:
    try:
        found = read_json(other, elsewhere_name(job_id), bytes_max=_BYTES_MAX)
    except ObjectNotFoundError:
        return False
    except StorageError as error:
        raise StorageError(f"{other.uri}: {error.message}", hint=error.hint) from None
    uri = found.get("output_uri") if isinstance(found, dict) else None
    if uri == main.uri:
        return True
    place = main.local_path("x")
    if not isinstance(uri, str) or not place:
        return False
    there = unquote(uri.removeprefix("file://"), errors="surrogateescape")
    return os.path.realpath(there) == os.path.realpath(place.parent)
