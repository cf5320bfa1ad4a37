"""The schedules of a service."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from dsort.client.transport import Query, Transport
from dsort.client.values import Schedule, ScheduleRun
from dsort.errors import ServiceError

__all__ = ["Schedules"]

PATH = "/v1/schedules"
RUNS_MAX = 500


class Schedules:
    """``client.schedules``: jobs that a service submits by the clock."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def add(self, name: str, definition: Mapping[str, Any]) -> Schedule:
        """Make a schedule: ``definition`` has its spec, when it is due, and what to do then."""
        return self._send("POST", PATH, {**definition, "name": name})

    def replace(self, name: str, definition: Mapping[str, Any]) -> Schedule:
        """Put another definition in place of the schedule's."""
        return self._send("PUT", _path(name), {**definition, "name": name}, repeatable=True)

    def list(self) -> list[Schedule]:
        """All that the token may see."""
        return [Schedule.of(each) for each in self._entries(PATH, "schedules")]

    def get(self, name: str) -> Schedule:
        """One schedule, with the next times at which it is due."""
        return Schedule.of(self._transport.document("GET", _path(name), repeatable=True))

    def remove(self, name: str) -> None:
        """Remove a schedule. Its jobs and their results stay."""
        self._transport.request("DELETE", _path(name))

    def pause(self, name: str) -> Schedule:
        """Let nothing be due until it is resumed."""
        return self._send("POST", f"{_path(name)}/pause", None, repeatable=True)

    def resume(self, name: str) -> Schedule:
        """Go on with a schedule that is paused."""
        return self._send("POST", f"{_path(name)}/resume", None, repeatable=True)

    def run_now(self, name: str) -> ScheduleRun:
        """Have the schedule make a job now, besides its due times; the run says which one, or that
        it waits for an earlier one. ``ConflictError``: an earlier one is not over, and the
        schedule's overlap is ``skip``."""
        return ScheduleRun.of(self._transport.document("POST", f"{_path(name)}/run-now"))

    def runs(self, name: str, *, limit: int = RUNS_MAX) -> tuple[ScheduleRun, ...]:
        """What came of its due times, the newest first."""
        found = self._entries(f"{_path(name)}/runs", "runs", query=[("limit", limit)])
        return tuple(map(ScheduleRun.of, found))

    def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None, *, repeatable: bool = False
    ) -> Schedule:
        options: dict[str, Any] = {"repeatable": repeatable}
        if body is not None:
            options["content"] = json.dumps(body).encode()
            options["headers"] = {"Content-Type": "application/json"}
        return Schedule.of(self._transport.document(method, path, **options))

    def _entries(self, path: str, name: str, *, query: Query = ()) -> tuple[Any, ...]:
        document = self._transport.document("GET", path, query=query, repeatable=True)
        try:
            return tuple(document[name])
        except (KeyError, TypeError) as error:
            raise ServiceError(f"the service's answer has no {name}") from error


def _path(name: str) -> str:
    return f"{PATH}/{quote(name, safe='')}"
