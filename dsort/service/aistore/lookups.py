"""Finds the jobs that AIStore's clients name, and checks who may see and change them.

AIStore's command line recognizes a dSort job by an id that begins with ``srt-``, and requests
``/v1/sort`` only for such ids. So all answers to these clients have such an id, and requests may
have either id of a job.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from fastapi import Request

from dsort.errors import DsortError, ForbiddenError, NotFoundError, SpecError
from dsort.results.layout import reactions_name
from dsort.service.aistore.answers import bucket_model, kinds_to_name, own_id
from dsort.service.api.dependencies import note
from dsort.service.database.tables import JobRow, split_uris
from dsort.service.hosting.process import open_output
from dsort.service.jobs.rows import NOT_READ
from dsort.service.jobs.store import JobFilter
from dsort.service.security.tokens import Identity
from dsort.service.service import Service
from dsort.spec.buckets import parse_bucket

_PAGE: Final = 500
_NAMES_MAX: Final = 10_000
_NAMES_BYTES_MAX: Final = 1 << 20
_ID: Final = re.compile(r"[A-Za-z0-9_-]+")


def find_job(service: Service, identity: Identity, uuid: str) -> JobRow | None:
    """The job with this id, which is AIStore's id or the service's; None if the token may see no
    such job."""
    row = service.store.get(own_id(uuid)) if _ID.fullmatch(uuid) else None
    return row if row is not None and identity.may_see(row) else None


def seen_job(service: Service, identity: Identity, uuid: str) -> JobRow:
    """Like ``find_job``; ``NotFoundError``, or ``SpecError`` if no job is named."""
    if not uuid:
        raise SpecError("no job is named", hint="start a job, or name one: ?uuid=ID")
    row = find_job(service, identity, uuid)
    if row is None:
        raise NotFoundError(f"dsort job {json.dumps(uuid)} does not exist")
    return row


def own_job(service: Service, identity: Identity, uuid: str) -> JobRow:
    """A job that the token may change; ``ForbiddenError`` for others' jobs."""
    row = seen_job(service, identity, uuid)
    if not identity.may_change(row.owner):
        raise ForbiddenError(f"job {uuid} belongs to {row.owner}")
    return row


def refuse_absent(service: Service, new: JobRow) -> None:
    """``NotFoundError`` for an input bucket whose directory does not exist. AIStore reports a
    missing bucket at once. Jobs from the REST routes fail only when they run, because their inputs
    may be made until then. Buckets of an object store are not checked: that would take a request to
    the store for each job."""
    for uri in split_uris(new.input_uri):
        ref = parse_bucket(uri)
        if ref.scheme == "file" and not Path(ref.path).is_dir():
            name = bucket_model(uri, service.config.run.root.resolve())["name"]
            raise NotFoundError(
                f"bucket {json.dumps(name)} does not exist", hint="make it, or look at its name"
            )


def names_of_reactions(service: Service, row: JobRow) -> dict[str, list[str]]:
    """Names by kind of reaction, from the file that the job has written beside its manifest, if
    AIStore's warnings need more names than the row has. Empty if the file is gone."""
    found: dict[str, list[str]] = {}
    with suppress(DsortError, RecursionError, *NOT_READ):
        needed = kinds_to_name(row.result or {})
        for line in _reaction_lines(service, row) if needed and row.kind == "run" else ():
            said = json.loads(line)
            kind, name, shard = said["kind"], said.get("name", ""), said.get("shard", "")
            if len(found.setdefault(kind, [])) < needed.get(kind, 0):
                found[kind].append(": ".join(filter(None, (shard, name))))
    return found


def _reaction_lines(service: Service, row: JobRow) -> list[bytes]:
    """The first lines of ``reactions.jsonl``, without a line that is cut off."""
    policy = service.submitter.policy.fetch_policy()
    bucket = open_output(row, service.config.run, policy)
    with bucket.open(reactions_name(row.job_id)) as opened:
        data = bytearray(min(opened.info.size_bytes, _NAMES_BYTES_MAX))
        opened.read_into(memoryview(data), 0)
    return bytes(data).split(b"\n", _NAMES_MAX)[:-1]


def all_jobs(service: Service, wanted: JobFilter) -> Iterator[JobRow]:
    """All jobs that match, newest first."""
    before: int | None = None
    while True:
        page = service.store.list(wanted, limit=_PAGE, before=before)
        yield from page.rows
        before = page.next_number
        if before is None:
            return


def stop_job(service: Service, request: Request, identity: Identity, uuid: str) -> None:
    """Stop the job. A job that has ended stays unchanged, without an error."""
    row = own_job(service, identity, uuid)
    service.store.ask_stop(row.job_id, "aborted by an AIStore client")
    note(request, identity.name, "job.stop", row.job_id)
    service.dispatcher.wake()
