"""The guest that ``dsort serve --aistore`` adds to the service: AIStore's dSort and cluster, and
requests that write objects and buckets."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter
from starlette.types import Scope

from dsort.service.aistore import bucket_writes, object_writes, routes
from dsort.service.aistore.answers import own_id
from dsort.service.aistore.key_maps import KEY_MAP_NAME
from dsort.service.config import ServiceConfig
from dsort.service.service import Service

__all__ = ["AistoreGuest"]

_OBJECTS = "/v1/objects/"


class AistoreGuest:
    """See ``api.app.Guest``."""

    def routers(self, service: Service) -> Sequence[APIRouter]:
        """AIStore's routes first: a key map must not become an object."""
        return [each.router(service) for each in (routes, object_writes, bucket_writes)]

    def own_id(self, job_id: str) -> str:
        """The id of a job from AIStore's id for it: users who started the job with AIStore's
        clients look at it here."""
        return own_id(job_id)

    def reads_itself(self, path: str) -> bool:
        """True for specs and objects."""
        return path == "/v1/sort" or path.startswith(_OBJECTS)

    def stored_max(self, scope: Scope, config: ServiceConfig) -> int | None:
        """The longest object; a key map is held, and not stored."""
        path = scope.get("path", "")
        is_object = scope["method"] == "PUT" and path.startswith(_OBJECTS)
        if not is_object or path.endswith(f"/{KEY_MAP_NAME}"):
            return None
        return config.object_bytes_max
