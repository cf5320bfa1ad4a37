"""What can be told before a byte is read: inputs that may not be read, and names that are taken."""

from __future__ import annotations

import os
from collections.abc import Sequence

from dsort.errors import NamesTakenError, ObjectNotFoundError, StorageAccessError
from dsort.job.job import Job
from dsort.storage.bucket import Bucket
from dsort.workers.source import InputShard

__all__ = ["existing_names", "refuse_taken_early", "refuse_unreadable", "some_of"]

TEMPLATES_LISTED_MAX = 64
NAMES_ASKED_FOR_MAX = 1_000
"""So many names from a number on are looked for in an object store: a listing has no end there.
Where there is an older result, its numbers have no gaps."""
_SHOWN_MAX = 3


def refuse_unreadable(inputs: Sequence[InputShard], bucket: Bucket) -> None:
    """``StorageAccessError`` that names the inputs which may not be read. Files are asked for one
    by one; in an object store the first one, for all: who may list need not be allowed to read."""
    if not inputs:
        return
    if bucket.local_path(inputs[0].name) is None:
        try:
            bucket.stat(inputs[0].name)
        except ObjectNotFoundError:
            return  # it is told when it is read: with what became of the others
        except StorageAccessError as error:
            raise StorageAccessError(
                f"input shard {inputs[0].name} can be listed but not read: {error.message}",
                hint=error.hint,
            ) from None
        return
    denied = [shard.name for shard in inputs if not _may_read(bucket, shard.name)]
    if denied:
        raise StorageAccessError(
            f"{len(denied):,} of {len(inputs):,} input shards in {bucket.uri} may not be read: "
            f"{some_of(denied)}",
            hint="give this user the right to read them, or leave them out",
        )


def refuse_taken_early(job: Job, *, dry: bool) -> None:
    """``NamesTakenError`` if objects have names that the outputs get, or may get where nobody knows
    yet how many there will be. Nothing if they may be replaced; a warning in a dry run."""
    if job.overwrite:
        return
    existing = existing_names(job)
    count = job.spec.output_shard_count
    if count is not None and job.keymap is None:
        existing = [name for name in existing if (job.names.number_of(0, name) or 0) < count]
    if not existing:
        return
    many = f"{len(existing):,} objects have names" if len(existing) > 1 else "1 object has a name"
    text = (
        f"output names are taken in {job.outputs_bucket.uri}: {many} that the output template "
        f"makes: {some_of(existing)}"
    )
    if dry:
        job.warn("names_taken", text)
        return
    raise NamesTakenError(
        text,
        hint="remove them, use another output_bck or output_format, or allow it: --overwrite",
    )


def existing_names(job: Job, first: Sequence[int] = ()) -> list[str]:
    """The objects that have names which the output templates make, from the number in ``first`` on
    (by template; 0 where it says none), but for inputs. Sorted."""
    bucket, names = job.outputs_bucket, job.names
    if not bucket.exists():
        return []
    starts = [*first, *[0] * (len(names.templates) - len(first))]
    found: set[str] = set()
    if bucket.seals_on_finish or len(starts) > TEMPLATES_LISTED_MAX:
        share = max(NAMES_ASKED_FOR_MAX // len(starts), 1)
        asked = [
            name for group, start in enumerate(starts) for name in names.some(group, start, share)
        ]
        found.update(bucket.stat_many(asked))
    else:
        for prefix in {template.prefix for template in names.templates}:
            found.update(info.name for info in bucket.list(prefix))
        found = names.made(found, starts)
    source, target = job.places
    inputs = {source.identity(shard.name) for shard in job.inputs} if found else set()
    return sorted(name for name in found if target.identity(name) not in inputs)


def _may_read(bucket: Bucket, name: str) -> bool:
    path = bucket.local_path(name)
    assert path is not None
    return os.access(path, os.R_OK, effective_ids=os.access in os.supports_effective_ids)


def some_of(names: Sequence[str]) -> str:
    """A few names, for a message."""
    return ", ".join(names[:_SHOWN_MAX]) + (", …" if len(names) > _SHOWN_MAX else "")
