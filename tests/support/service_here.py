"""A service in this process with its guest, reached without a socket. Its jobs wait unless the
service is started."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from fastapi import FastAPI
from fastapi.testclient import TestClient

from dsort.options import RunOptions
from dsort.service.aistore.guest import AistoreGuest
from dsort.service.api.app import create_app, surround
from dsort.service.config import ServiceConfig
from dsort.service.objects.processes import Forks
from dsort.service.service import Service
from dsort.settings import Settings
from tests.support.forked_jobs import forked_jobs

SPEC: dict[str, Any] = {
    "input_bck": "images",
    "output_bck": "shuffled",
    "output_format": "out-%04d",
    "output_shard_size": "1KB",
    "algorithm": {"kind": "shuffle", "seed": "1"},
}


class _Current:
    """The service that the routes of an application use now, under its own attribute names."""

    service: Service

    def __getattr__(self, name: str) -> Any:
        return getattr(self.service, name)


_apps: dict[bool, list[tuple[FastAPI, _Current]]] = {False: [], True: []}
"""Applications whose services have ended, by whether their metrics are open. They are used again:
to make their routes takes as long as to answer dozens of requests, and all services have the same
routes."""


@contextlib.contextmanager
def _app_of(service: Service) -> Iterator[FastAPI]:
    """An application that no other test uses meanwhile."""
    free = _apps[service.config.metrics_open]
    if free:
        app, current = free.pop()
        current.service = service
        app.user_middleware.clear()
        app.middleware_stack = None
        surround(app, service)
    else:
        current = _Current()
        current.service = service
        app = create_app(cast(Service, current))
    yield app
    free.append((app, current))


class _SharedForks(Forks):
    """The process that looks into shards, for all services of the test's process: to load its
    modules takes longer than most tests. It ends with the process of the tests."""

    def close(self) -> None:
        pass


_forks: dict[frozenset[tuple[str, str]], _SharedForks] = {}
"""The processes by the environment that they inherit."""


def _forks_of(service: Service) -> _SharedForks:
    own = ("MODULE", service.guest.shard_module)
    variables = (each for each in os.environ.items() if each[0] != "PYTEST_CURRENT_TEST")
    made = _SharedForks(service.guest.shard_module)
    return _forks.setdefault(frozenset([own, *variables]), made)


class ServiceHere:
    """A service and a client of it."""

    def __init__(self, service: Service, client: TestClient) -> None:
        self.service = service
        self.client = client

    def submit(self, spec: dict[str, Any] | None = None, **query: Any) -> dict[str, Any]:
        """Submit a spec, and return the job's view."""
        answer = self.client.post("/v1/jobs", json=SPEC if spec is None else spec, params=query)
        assert answer.status_code == 201, answer.text
        view: dict[str, Any] = answer.json()
        return view

    def headers(self, name: str, role: str, **buckets: list[str]) -> dict[str, str]:
        """The headers of a new token, for the buckets of ``SPEC`` unless others are given."""
        root = self.service.config.run.root
        own = {"input_buckets": [f"{root}/images"], "output_buckets": [f"{root}/shuffled"]}
        text = self.service.tokens.add(name, role, **{**own, **buckets})
        return {"Authorization": f"Bearer {text}"}


def config_for(
    directory: Path, *, root: Path | None = None, settings: Settings | None = None, **more: Any
) -> ServiceConfig:
    """The configuration of a service that keeps everything in ``directory``."""
    data = directory / "data"
    data.mkdir(exist_ok=True)
    values: dict[str, Any] = {
        "run": RunOptions(root=root or data, settings=settings or Settings()),
        "state_dir": directory / "state",
        "database_url": f"sqlite:///{directory / 'service.db'}",
        "replica": "here",
        "no_auth": True,
        **more,
    }
    return ServiceConfig(**values)


@contextlib.contextmanager
def service_here(directory: Path, *, start: bool = False, **more: Any) -> Iterator[ServiceHere]:
    """A service of its own, over a database in ``directory`` unless ``database_url`` is given."""
    with (
        forked_jobs(),
        Service(config_for(directory, **more), AistoreGuest()) as service,
    ):
        service.shards.forks = _forks_of(service)
        if start:
            service.start()
        with _app_of(service) as app:
            # Without tokens, a service refuses requests to another host name than localhost.
            client = TestClient(app, base_url="http://localhost", raise_server_exceptions=False)
            yield ServiceHere(service, client)
