"""The requests about jobs that AIStore's clients send to a cluster: list running jobs, get the
status of a job, stop a job.

AIStore's command line sends these requests beside those of ``/v1/sort``; AIStore's SDK sends them
to wait for a job of any kind.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from dsort.errors import NotFoundError, NotSupportedError
from dsort.service.aistore.answers import TARGET, go_time, job_snap, job_status, peer_id
from dsort.service.aistore.lookups import all_jobs, find_job, seen_job, stop_job
from dsort.service.aistore.messages import fields_of, message_of, text_in
from dsort.service.api.dependencies import Caller, JsonAnswer, Submitting
from dsort.service.database.tables import JobRow
from dsort.service.jobs.store import JobFilter
from dsort.service.security.tokens import Identity, visible
from dsort.service.service import Service

REMOVAL: Final = "delete-listrange"
"""AIStore's name for the action, and for a job of that kind."""

SNAPS_MAX: Final = 1000
_REMOVAL_ID: Final = re.compile("rmo-([0-9a-f]{16})")
_NS: Final = 10**9
_NO_BUCKET: Final = {"name": "", "provider": "", "namespace": {"uuid": "", "name": ""}}
_KINDS: Final = ("", "dsort")
_ACTIVE: Final = ("queued", "running")


def declined(what: str) -> NotSupportedError:
    """The error for the parts of AIStore's interface that this service lacks."""
    return NotSupportedError(
        f"this is dsort's job service, no AIStore cluster: it has no /v1/{what}",
        hint="of AIStore's interface it has /v1/sort, the jobs of /v1/cluster, buckets, and "
        "objects, which are written and removed whole",
    )


def add_cluster(routes: APIRouter, service: Service) -> None:
    """Adds ``/v1/cluster`` as far as it concerns jobs, ``/v1/download``, and the cluster map in
    ``/v1/daemon``. The requests have a JSON body even where the method is GET."""

    @routes.get("/cluster", include_in_schema=False)
    async def get_cluster(
        request: Request, identity: Caller, what: Annotated[str, Query(max_length=64)] = ""
    ) -> Response:
        """The jobs that run, or the states of jobs, as AIStore's parameter ``what`` selects."""
        look = _LOOKS.get(what)
        if look is None:
            raise declined("cluster")
        asked = _Asked(message_of(await request.body()))
        return JsonAnswer(await run_in_threadpool(look, service, identity, asked))

    @routes.get("/daemon", include_in_schema=False)
    async def get_daemon(
        request: Request, identity: Caller, what: Annotated[str, Query(max_length=64)] = ""
    ) -> Response:
        """The cluster map. AIStore's clients request it to check that a cluster answers."""
        if what != "smap":
            raise declined("daemon")
        return JsonAnswer(_cluster_map(str(request.base_url).removesuffix("/")))

    @routes.put("/cluster", response_class=Response, include_in_schema=False)
    async def put_cluster(request: Request, identity: Submitting) -> Response:
        """Stop a job."""
        message = message_of(await request.body())
        if message.get("action") != "stop":
            raise declined("cluster")
        asked = _Asked(fields_of(message.get("value")))
        if asked.kind not in _KINDS:
            raise NotFoundError(f"no job of kind {asked.kind!r} runs here")
        await run_in_threadpool(stop_job, service, request, identity, asked.uuid)
        return Response(status_code=200)

    @routes.get("/download", include_in_schema=False)
    async def get_downloads(request: Request, identity: Caller) -> Response:
        """Downloads: this service has none."""
        asked = _Asked(message_of(await request.body()))
        if asked.uuid:
            raise NotFoundError(f"download job {asked.uuid!r} does not exist")
        return JsonAnswer([])


def _cluster_map(url: str) -> dict[str, Any]:
    """A cluster of one proxy and one target, both of which are this service at ``url``."""
    parts = urlsplit(url)
    port = parts.port or {"https": 443}.get(parts.scheme, 80)
    network = {
        "node_ip_addr": parts.hostname or "",
        "daemon_port": str(port),
        "direct_url": url,
    }
    networks = dict.fromkeys(("public_net", "intra_data_net", "intra_control_net"), network)
    proxy, target = (
        {**networks, "daemon_id": TARGET, "daemon_type": kind, "flags": 0, "id_digest": 0}
        for kind in ("proxy", "target")
    )
    return {
        "pmap": {TARGET: proxy},
        "proxy_si": proxy,
        "tmap": {TARGET: target},
        "uuid": TARGET,
        "creation_time": "",
        "version": "1",
    }


class _Asked:
    """The jobs that a message selects. AIStore writes the same fields in two spellings."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.uuid = text_in(fields, "id")
        self.kind = text_in(fields, "kind")
        self.only_active = bool(fields.get("show_active") or fields.get("onlyrunning"))
        bucket = fields.get("bck")
        self.bucket = text_in(fields_of(bucket), "name") if bucket else ""

    def rows(self, service: Service, identity: Identity, *, active: bool) -> Iterator[JobRow]:
        """The jobs, newest first, at most ``SNAPS_MAX``."""
        if self.kind not in _KINDS:
            return
        if self.uuid:
            row = find_job(service, identity, self.uuid)
            if row is not None and (not active or not row.ended):
                yield row
            return
        wanted = JobFilter(states=_ACTIVE if active else (), visible=visible(identity))
        for at, row in enumerate(all_jobs(service, wanted)):
            if at == SNAPS_MAX:
                return
            yield row


def _snaps(service: Service, identity: Identity, asked: _Asked) -> dict[str, list[dict[str, Any]]]:
    removal = _removal_snap(asked.uuid)
    if removal is not None:
        return {} if asked.only_active else {TARGET: [removal]}
    root = service.config.run.root.resolve()
    rows = asked.rows(service, identity, active=asked.only_active)
    snaps = [
        snap
        for snap in (job_snap(row, root) for row in rows)
        if asked.bucket in ("", snap["src-bck"]["name"], snap["dst-bck"]["name"])
    ]
    if asked.uuid and not snaps and find_job(service, identity, asked.uuid) is None:
        # AIStore's command treats an empty answer as jobs that have ended, and exits with 0.
        raise NotFoundError(f"job {json.dumps(asked.uuid)} does not exist")
    return {TARGET: snaps} if snaps else {}


def _running(service: Service, identity: Identity, asked: _Asked) -> list[str]:
    rows = asked.rows(service, identity, active=True)
    return [f"dsort[{peer_id(row.job_id)}]" for row in rows]


def _status(service: Service, identity: Identity, asked: _Asked) -> dict[str, Any]:
    return _removal_status(asked.uuid) or job_status(seen_job(service, identity, asked.uuid))


def _statuses(service: Service, identity: Identity, asked: _Asked) -> list[dict[str, Any]]:
    rows = asked.rows(service, identity, active=asked.only_active)
    return [job_status(row) for row in rows]


def removal_id(now_ns: int) -> str:
    """The id of a removal that has ended now.

    AIStore removes several objects by a job, for which its clients wait. This service removes the
    objects before it answers. The time of their removal is in the id, so that the service keeps no
    state for the clients that wait."""
    return f"rmo-{now_ns:016x}"


def _ended_ns(uuid: str) -> int | None:
    match = _REMOVAL_ID.fullmatch(uuid)
    return None if match is None else int(match[1], 16) & (1 << 62) - 1


def _removal_status(uuid: str) -> dict[str, Any] | None:
    """The status of a removal for a client that waits for it; None for the id of another job."""
    ended_ns = _ended_ns(uuid)
    if ended_ns is None:
        return None
    return {"kind": REMOVAL, "uuid": uuid, "err": "", "end_time": ended_ns, "aborted": False}


def _removal_snap(uuid: str) -> dict[str, Any] | None:
    """The removal as one of AIStore's jobs of any kind; see ``answers.job_snap``."""
    ended_ns = _ended_ns(uuid)
    if ended_ns is None:
        return None
    counts = ("loc-objs", "loc-bytes", "out-objs", "out-bytes", "in-objs", "in-bytes")
    return {
        "id": uuid,
        "kind": REMOVAL,
        **dict.fromkeys(("bck", "src-bck", "dst-bck"), _NO_BUCKET),
        "start-time": go_time(ended_ns / _NS),
        "end-time": go_time(ended_ns / _NS),
        "stats": dict.fromkeys(counts, "0"),
        "aborted": False,
        "is_idle": True,
        "abort-err": "",
        "ext": None,
    }


_LOOKS: Final = {
    "qryxstats": _snaps,
    "running_all": _running,
    "status": _status,
    "status_all": _statuses,
}
