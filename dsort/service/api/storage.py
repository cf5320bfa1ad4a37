"""``/v1/storage`` and ``/v1/garbage``, for admins: what is stored, and which of it can be removed.
These routes remove nothing: `dsort gc` and schedules do."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from dsort.errors import NotFoundError
from dsort.model.base import example_of
from dsort.model.dataset import GarbageList, StorageView
from dsort.service.api.answers import JsonAnswer
from dsort.service.api.datasets import Looks, WholeBucket
from dsort.service.api.dependencies import Admin
from dsort.service.api.models import problems, shown
from dsort.service.jobs.rows import rfc3339, validated
from dsort.service.schedules.retention import ScheduleResults
from dsort.service.schedules.rows import ScheduleRow
from dsort.service.service import Service

__all__ = ["router"]

RESULTS_MAX: Final = 100
SCHEDULES_MAX: Final = 200
OLD_S: Final = 86_400.0


def router(service: Service) -> APIRouter:
    """The routes of storage."""
    routes = APIRouter(prefix="/v1", tags=["storage"], default_response_class=JsonAnswer)

    @routes.get(
        "/storage",
        response_model=StorageView,
        responses=shown(200, example_of(StorageView)) | problems(401, 403, 429),
        summary="Room, and what schedules keep",
    )
    def storage(caller: Admin) -> StorageView:
        """The disks of this replica, and the results that each schedule keeps. For admins."""
        results = ScheduleResults(service.database)
        schedules = service.schedules.list()[:SCHEDULES_MAX]
        kept = [_kept(each, results) for each in schedules if not each.unreadable]
        return validated(StorageView, {"disks": _disks(service), "schedules": kept})

    _add_garbage(routes, Looks(service))
    return routes


def _add_garbage(routes: APIRouter, looks: Looks) -> None:
    service = looks.service

    @routes.get(
        "/garbage/{bucket:path}",
        response_model=GarbageList,
        responses=shown(200, example_of(GarbageList))
        | problems(400, 401, 403, 404, 413, 422, 429, 502),
        summary="What dead jobs left in a bucket",
    )
    async def garbage(
        request: Request,
        caller: Admin,
        bucket: WholeBucket,
        older_than_s: Annotated[
            float, Query(ge=0, le=1e9, description="What counts as old.")
        ] = OLD_S,
    ) -> Response:
        """What `dsort gc` would list for a bucket. Nothing is removed. For admins."""
        place = looks.bucket(request, caller, b"/v1/garbage/")
        if not await run_in_threadpool(place.opened().exists):
            raise NotFoundError(f'bucket "{place.shown_bucket}" does not exist')
        scratch = service.config.scratch_dir
        order = {
            "look": "garbage",
            "scratch": None if scratch is None else str(scratch),
            "older_than_s": older_than_s,
        }
        await looks.note(request, "storage.look", place)
        return await looks.answer(request, place, order)


def _kept(row: ScheduleRow, results: ScheduleResults) -> dict[str, Any]:
    retain = row.definition.retain
    found = results.finished(row.schedule_id)[:RESULTS_MAX]
    return {
        "schedule": row.name,
        "owner": row.owner,
        "output_bucket": row.output_uri,
        "retain": retain,
        "results": [
            {
                "job_id": each.job_id,
                "due_at": rfc3339(each.due_at),
                "goes_next": retain is not None and newer + 1 >= retain,
            }
            for newer, each in enumerate(found)
        ],
    }


def _disks(service: Service) -> list[dict[str, Any]]:
    config = service.config
    places: dict[str, Path | None] = {
        "data": config.run.root,
        "state of the service": config.state_dir,
        "scratch of jobs": config.scratch_dir,
    }
    found = []
    for what, path in places.items():
        there = (
            next((each for each in (path, *path.parents) if each.exists()), None) if path else None
        )
        if path is not None and there is not None:
            usage = shutil.disk_usage(there)
            sizes = {"free_bytes": usage.free, "total_bytes": usage.total}
            found.append({"what": what, "path": str(path), **sizes})
    return found
