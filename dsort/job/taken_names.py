"""Refuse output names that objects of the output bucket have, as soon as that can be known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dsort.errors import NamesTakenError
from dsort.job.job import Job
from dsort.job.sidecars import early_sidecar_names
from dsort.naming.names import first_few

TEMPLATES_LISTED_MAX = 64
NAMES_ASKED_FOR_MAX = 1_000
"""The number of names, from a number on, that are looked up in an object store, where a listing has
no end. The numbers of an older result have no gaps."""


TAKEN_HINT: Final = (
    "remove them, use another output_bck or output_format, or set overwrite: true (--overwrite)"
)


def refuse_taken_early(job: Job, *, dry: bool) -> None:
    """``NamesTakenError`` if objects have names that the outputs get, or may get if their number is
    not known yet. Nothing if the job may replace them; a warning in a dry run."""
    sidecars = early_sidecar_names(job)
    if job.overwrite:
        return
    if sidecars and job.buckets.outputs.exists():
        _refuse(job, "sidecars get", sorted(job.buckets.outputs.stat_many(sidecars)), dry=dry)
    existing = existing_names(job)
    counts = [target.count for target in job.pipeline.targets]
    if all(count is not None for count in counts):
        existing = [name for name in existing if not _is_behind(job, name, counts)]
    _refuse(job, "the output template makes", existing, dry=dry)


def _is_behind(job: Job, name: str, counts: Sequence[int | None]) -> bool:
    """Whether a template makes ``name`` only for more shards than there will be."""
    numbers = [
        (job.outcome.names.number_of(group, name), count) for group, count in enumerate(counts)
    ]
    made = [number >= (count or 0) for number, count in numbers if number is not None]
    return bool(made) and all(made)


def _refuse(job: Job, origin: str, existing: Sequence[str], *, dry: bool) -> None:
    if not existing:
        return
    many = f"{len(existing):,} objects have names" if len(existing) > 1 else "1 object has a name"
    text = (
        f"output names are taken in {job.buckets.outputs.uri}: {many} that {origin}: "
        f"{first_few(existing)}"
    )
    if dry:
        job.reporter.warn("names_taken", text)
        return
    raise NamesTakenError(
        text,
        hint=TAKEN_HINT,
    )


def refuse_taken(job: Job, names: list[str], *, overwrite: bool) -> None:
    """``NamesTakenError`` if an output name is taken, unless the job may replace it."""
    for name in names:
        path = job.buckets.outputs.local_path(name)
        if path is not None and path.is_dir():
            raise NamesTakenError(
                f"{name} in {job.buckets.outputs.uri} is a directory, no shard can have that name",
                hint="remove it, or use another output_bck or output_format",
            )
    if overwrite:
        return
    existing = sorted(job.buckets.outputs.stat_many(names))
    if existing:
        shown = first_few(existing)
        raise NamesTakenError(
            f"{len(existing)} output names are taken in {job.buckets.outputs.uri}: {shown}",
            hint=TAKEN_HINT,
        )


def existing_names(job: Job, first: Sequence[int] = ()) -> list[str]:
    """The objects with names that the output templates make, from the number in ``first`` on (by
    template; 0 if it has none), except for inputs. Sorted."""
    bucket, names = job.buckets.outputs, job.outcome.names
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
        for prefix in {names.prefix(group) for group in range(len(names.templates))}:
            found.update(info.name for info in bucket.list(prefix))
        found = names.made(found, starts)
    source, target = job.buckets.identities
    inputs = {source.identity(shard.name) for shard in job.inputs} if found else set()
    return sorted(name for name in found if target.identity(name) not in inputs)
