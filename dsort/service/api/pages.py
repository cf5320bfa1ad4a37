"""The web page: ``/`` with its scripts and styles from ``dsort/web/static``; and ``/docs``, where
each route can be tried, with the files of Swagger UI.

The page contains no secrets, so it needs no token: it asks its user for one once the REST interface
answers 401.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath

from fastapi import APIRouter, Request, Response
from msgspec import Struct

from dsort.errors import NotFoundError
from dsort.service.service import Service

CONTENT_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
NOT_SERVED = frozenset(("report.html", "report.js"))  # files of the report that is one HTML file
START = "index.html"
API_DOCS = "api_docs.html"
SWAGGER_UI = frozenset(("swagger-ui-bundle.js", "swagger-ui.css"))

PAGE_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # the browser checks each time, and mostly gets a 304
}

API_DOCS_POLICY = (
    PAGE_HEADERS["Content-Security-Policy"]
    .replace("style-src 'self'", "style-src 'self' 'unsafe-inline'")  # Swagger UI sets styles
    .replace("img-src 'self'", "img-src 'self' data:")
)


class _File(Struct, frozen=True):
    content: bytes
    headers: Mapping[str, str]

    def answer(self, request: Request) -> Response:
        """The file, or 304 if the client has it."""
        known = [tag.strip() for tag in request.headers.get("if-none-match", "").split(",")]
        if self.headers["ETag"] in known:
            return Response(status_code=304, headers=self.headers)
        return Response(self.content, headers=self.headers)


def router(service: Service) -> APIRouter:
    """The routes of the web page. They are not part of the OpenAPI document."""
    routes = APIRouter(include_in_schema=False)
    known = _read_files()

    @routes.api_route("/", methods=["GET", "HEAD"])
    async def start(request: Request) -> Response:
        return known[START].answer(request)

    @routes.api_route("/docs", methods=["GET", "HEAD"])
    async def api_docs(request: Request) -> Response:
        return known[API_DOCS].answer(request)

    @routes.api_route("/web/{name}", methods=["GET", "HEAD"])
    async def web_file(name: str, request: Request) -> Response:
        if name not in known:
            raise NotFoundError(f"there is no file {name!r} of the web page")
        return known[name].answer(request)

    return routes


def _read_files() -> dict[str, _File]:
    """All files of the page by name, kept in memory: they are few and small, and do not change."""
    found = {}
    for entry in _entries():
        content_type = CONTENT_TYPES.get(PurePosixPath(entry.name).suffix)
        if content_type is None or entry.name in NOT_SERVED:
            continue
        content = entry.read_bytes()
        tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        headers = {**PAGE_HEADERS, "Content-Type": content_type, "ETag": tag}
        if entry.name == API_DOCS:
            headers["Content-Security-Policy"] = API_DOCS_POLICY
        found[entry.name] = _File(content, headers)
    return found


def _entries() -> Iterable[Traversable]:
    yield from files("dsort").joinpath("web", "static").iterdir()
    for entry in files("fastapi_offline").joinpath("static").iterdir():
        if entry.name in SWAGGER_UI:
            yield entry
