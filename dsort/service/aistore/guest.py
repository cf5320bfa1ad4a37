"""The guest that ``dsort serve --aistore`` adds to the service: AIStore's dSort and cluster, whole
objects and buckets, and named transforms."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter
from starlette.types import Scope

from dsort.service.aistore import (
    bucket_reads,
    bucket_writes,
    object_reads,
    object_writes,
    routes,
    transforms,
)
from dsort.service.aistore.answers import own_id
from dsort.service.aistore.key_maps import KEY_MAP_NAME
from dsort.service.aistore.transforms import TransformStore
from dsort.service.config import ServiceConfig
from dsort.service.database.engine import Database
from dsort.service.service import Guest, Service
from dsort.spec.transform import Lookup

_OBJECTS = "/v1/objects/"


class AistoreGuest(Guest):
    """See ``service.Guest``."""

    shard_module = "dsort.service.aistore.shard_works"

    def routers(self, service: Service) -> Sequence[APIRouter]:
        """AIStore's routes first: a key map must not become an object."""
        objects = (bucket_reads, bucket_writes, object_reads, object_writes)
        return [each.router(service) for each in (routes, *objects, transforms)]

    def transforms(self, database: Database) -> Lookup:
        """Finds the transforms that admins have registered."""
        return TransformStore(database).find

    def own_id(self, job_id: str) -> str:
        """The service's id of a job, from AIStore's id: users start jobs with AIStore's clients,
        and look at these jobs in the service."""
        return own_id(job_id)

    def reads_itself(self, path: str) -> bool:
        """True for specs and objects."""
        return path == "/v1/sort" or path.startswith(_OBJECTS)

    def stored_max(self, scope: Scope, config: ServiceConfig) -> int | None:
        """The limit of objects. None for a key map, which is held in memory and not stored."""
        path = scope.get("path", "")
        is_object = scope["method"] == "PUT" and path.startswith(_OBJECTS)
        if not is_object or path.endswith(f"/{KEY_MAP_NAME}"):
            return None
        return config.object_bytes_max
