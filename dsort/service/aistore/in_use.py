"""Objects that a running job needs: they cannot be replaced or removed over HTTP.

The job would notice the change, and fail: its inputs are checked again before it commits. With this
check the writer gets an error instead, and the job continues. The check is made once, before a
write; a job that begins meanwhile notices the change itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from itertools import product

from sqlalchemy import select

from dsort.errors import ConflictError
from dsort.naming.overlap import claim_on, is_within
from dsort.service.database.engine import Database
from dsort.service.database.tables import jobs
from dsort.service.security.uris import split_uris

__all__ = ["refuse_bucket_in_use", "refuse_in_use"]


def refuse_in_use(
    database: Database, uri: str, names: Iterable[str], is_there: Callable[[str], bool]
) -> None:
    """``ConflictError`` if a running job may write one of ``names`` in the bucket ``uri``, or reads
    its bucket and the object exists. A new object in a bucket that is read does no harm."""
    query = select(jobs.c.job_id, jobs.c.input_uri, jobs.c.claims).where(jobs.c.state == "running")
    with database.reading() as connection:
        rows = connection.execute(query).all()
    for name, (job_id, input_uri, claims) in product(names if rows else (), rows):
        if _may_write(claims, uri, name):
            raise ConflictError(
                f"job {job_id}, which runs, may write {name}", hint="wait for it, or stop it"
            )
        if any(is_within(uri, name, each) for each in split_uris(input_uri)) and is_there(name):
            raise ConflictError(
                f"job {job_id}, which runs, reads the bucket that has {name}",
                hint="wait for it, stop it, or choose another name",
            )


def refuse_bucket_in_use(database: Database, uri: str) -> None:
    """``ConflictError`` if a job that has not ended reads or writes in the bucket ``uri``, in a
    bucket that contains it, or in a bucket inside it."""
    query = select(jobs.c.job_id, jobs.c.input_uri, jobs.c.output_uri).where(
        jobs.c.state.in_(("queued", "running"))
    )
    with database.reading() as connection:
        rows = connection.execute(query).all()
    for job_id, *texts in rows:
        for other in (each for text in texts for each in split_uris(text)):
            if is_within(uri, "", other) or is_within(other, "", uri):
                raise ConflictError(
                    f"job {job_id}, which is not over, uses the bucket",
                    hint="wait for it, or stop it",
                )


def _may_write(claims: Sequence[Sequence[str]] | None, uri: str, name: str) -> bool:
    """Whether one of ``claims`` may be ``name`` in the bucket ``uri``. Texts that are not templates
    match nothing: the engine refuses them."""
    with contextlib.suppress(ValueError):
        return claim_on(claims or (), uri, name) is not None
    return False
