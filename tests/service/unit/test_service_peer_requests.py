"""Requests as AIStore's own command and clients send them, recorded, each with its answer.

The command itself is not ours to ship: a row has what it sends (method, path, query, body), and
what it needs of the answer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import update

from dsort.options import RunOptions
from dsort.service.aistore.guest import AistoreGuest
from dsort.service.api.app import create_app
from dsort.service.config import ServiceConfig
from dsort.service.database.tables import jobs
from dsort.service.service import Service

NO_BUCKET = {"name": "", "provider": "", "namespace": {"uuid": "", "name": ""}}
SPEC: dict[str, Any] = {
    "input_bck": {"name": "in", "provider": "ais"},
    "input_format": {"template": "in-{0..3}", "objnames": None},
    "input_extension": ".tar",
    "output_bck": NO_BUCKET,
    "output_format": "out-{0..9}",
    "output_extension": "",
    "output_shard_size": "10KB",
    "algorithm": {
        "kind": "",
        "decreasing": False,
        "seed": "",
        "extension": "",
        "content_key_type": "",
    },
    "ekm_file": "",
    "ekm_file_sep": "",
    "max_mem_usage": "",
    "Config": {},
}
There = tuple[TestClient, dict[str, str]]
OLD, NEW = "OLD", "NEW"
"""Stand for the ids of a job that ended and of one that waits."""


@dataclass(frozen=True)
class Recorded:
    """One request and its answer. ``body``: JSON. ``answer``: the JSON it is, or a pattern that its
    text matches, or None for an empty one."""

    what: str
    method: str
    path: str
    query: dict[str, str] = field(default_factory=dict)
    body: Any = None
    status: int = 200
    answer: Any = None


def snaps(*ids: str) -> Any:
    """Whether an answer of ``qryxstats`` is about these jobs."""

    def check(said: dict[str, list[dict[str, Any]]]) -> bool:
        found = [snap for each in said.values() for snap in each]
        return {snap["kind"] for snap in found} == {"dsort"} and (
            {snap["id"] for snap in found} == set(ids)
        )

    return check


STATUS = {"kind": "dsort", "uuid": f"srt-{NEW}", "err": "", "end_time": 0, "aborted": False}
RECORDED = [
    Recorded(
        "start: every optional field is sent, empty",
        *("POST", "/v1/sort"),
        body=SPEC,
        answer=r"srt-[\w-]{9,28}",
    ),
    Recorded(
        "start: an output bucket that is an empty object is the input's",
        *("POST", "/v1/sort"),
        body=SPEC | {"output_bck": {}, "output_format": "b-{0..9}"},
        answer=r"srt-.*",
    ),
    Recorded(
        "start: an input bucket that is not there",
        *("POST", "/v1/sort"),
        body=SPEC | {"input_bck": {"name": "gone", "provider": "ais"}},
        status=404,
        answer=r'bucket "gone" does not exist',
    ),
    Recorded(
        "start: a bucket of an object store, which is not looked for",
        *("POST", "/v1/sort"),
        body=SPEC | {"input_bck": {"name": "gone", "provider": "aws"}, "output_format": "c-{0..9}"},
        answer=r"srt-.*",
    ),
    Recorded(
        "start: every object that may be there is, and says nothing",
        *("POST", "/v1/sort"),
        body={name: {} for name in ("output_bck", "algorithm", "Config")}
        | {
            "input_bck": {"name": "in", "provider": "", "namespace": {}},
            "input_format": {},
            "output_format": "d-{0..9}",
            "output_shard_size": "10KB",
        },
        answer=r"srt-.*",
    ),
    Recorded(
        "start: no input bucket",
        *("POST", "/v1/sort"),
        body=SPEC | {"input_bck": {}},
        status=400,
        answer=r"input_bck",
    ),
    Recorded(
        "show job srt-...",
        *("GET", "/v1/sort", {"uuid": f"srt-{NEW}"}),
        answer=lambda said: [each["id"] for each in said.values()] == [f"srt-{NEW}"],
    ),
    Recorded(
        "show job, by the id that the job has elsewhere",
        *("GET", "/v1/sort", {"uuid": NEW}),
        answer=lambda said: [each["id"] for each in said.values()] == [f"srt-{NEW}"],
    ),
    Recorded(
        "show job: a job that waits has a start, or it would have run for 292 years",
        *("GET", "/v1/sort", {"uuid": NEW}),
        answer=lambda said: all(each["started_time"] > "2026" for each in said.values()),
    ),
    Recorded(
        "show job: so does its first phase, whose time the command shows",
        *("GET", "/v1/sort", {"uuid": NEW}),
        answer=lambda said: all(
            each["Metrics"]["local_extraction"]["started_time"] == each["started_time"]
            for each in said.values()
        ),
    ),
    Recorded("show job: downloads", "GET", "/v1/download", answer=[]),
    Recorded(
        "show job: downloads, as the Go client asks",
        *("GET", "/v1/download"),
        body={"id": "", "regex": "", "only_active": True},
        answer=[],
    ),
    Recorded(
        "show job: a download",
        *("GET", "/v1/download"),
        body={"id": "dnl-123456789"},
        status=404,
        answer=r".*dnl-123456789.*does not exist",
    ),
    Recorded(
        "show job: jobs of another kind",
        *("GET", "/v1/cluster", {"what": "qryxstats"}),
        body={"id": "", "kind": "rebalance", "bck": NO_BUCKET, "show_active": True},
        answer={},
    ),
    Recorded(
        "show job: jobs of a bucket that has none",
        *("GET", "/v1/cluster", {"what": "qryxstats"}),
        body={"kind": "", "bck": {"name": "other", "provider": "ais"}},
        answer={},
    ),
    Recorded(
        "show job: no such job",
        *("GET", "/v1/cluster", {"what": "qryxstats"}),
        body={"id": "srt-none", "bck": NO_BUCKET},
        status=404,
        answer='job "srt-none" does not exist',
    ),
    Recorded(
        "show job: one, running or not",
        *("GET", "/v1/cluster", {"what": "qryxstats"}),
        body={"id": f"srt-{OLD}", "kind": "", "bck": NO_BUCKET},
        answer=snaps(f"srt-{OLD}"),
    ),
    Recorded(
        "the SDK's job(id): fields by their names in Go",
        *("GET", "/v1/cluster", {"what": "qryxstats"}),
        body={"ID": f"srt-{NEW}", "Kind": "", "DaemonID": "", "Bck": None, "Buckets": None},
        answer=snaps(f"srt-{NEW}"),
    ),
    Recorded(
        "show job: one that must run still, and does not",
        *("GET", "/v1/cluster", {"what": "qryxstats"}),
        body={"id": f"srt-{OLD}", "bck": NO_BUCKET, "show_active": True},
        answer={},
    ),
    Recorded(
        "what runs",
        *("GET", "/v1/cluster", {"what": "running_all"}),
        body={"kind": "", "bck": NO_BUCKET, "show_active": True},
        answer=lambda said: f"dsort[srt-{NEW}]" in said and f"dsort[srt-{OLD}]" not in said,
    ),
    Recorded(
        "what runs, of another kind",
        *("GET", "/v1/cluster", {"what": "running_all"}),
        body={"kind": "lru-eviction", "bck": NO_BUCKET},
        answer=[],
    ),
    Recorded(
        "wait: a job that runs has no end",
        *("GET", "/v1/cluster", {"what": "status"}),
        body={"id": f"srt-{NEW}", "kind": "dsort", "bck": NO_BUCKET},
        answer=STATUS,
    ),
    Recorded(
        "wait: no such job",
        *("GET", "/v1/cluster", {"what": "status"}),
        body={"id": "srt-none", "kind": "dsort", "bck": NO_BUCKET},
        status=404,
        answer=r'dsort job "srt-none" does not exist',
    ),
    Recorded(
        "the cluster map: this is no cluster",
        *("GET", "/v1/cluster", {"what": "smap"}),
        status=501,
        answer=r".*no AIStore cluster",
    ),
    Recorded(
        "stop: a job of another kind",
        *("PUT", "/v1/cluster"),
        body={"action": "stop", "name": "", "value": {"ID": "", "Kind": "rebalance"}},
        status=404,
        answer=r".*rebalance",
    ),
    Recorded(
        "stop: which one is not said",
        *("PUT", "/v1/cluster"),
        body={"action": "stop", "name": "", "value": {"ID": "", "Kind": "dsort"}},
        status=400,
        answer="no job is named",
    ),
    Recorded(
        "stop: a value that is none",
        *("PUT", "/v1/cluster"),
        body={"action": "stop", "value": "srt-none"},
        status=400,
        answer=".*is no object",
    ),
    Recorded(
        "start a job of another kind",
        *("PUT", "/v1/cluster"),
        body={"action": "start", "value": {"ID": "", "Kind": "rebalance"}},
        status=501,
        answer=r".*no AIStore cluster",
    ),
    Recorded(
        "stop: by id, as a job of any kind",
        *("PUT", "/v1/cluster"),
        body={"action": "stop", "name": "", "value": {"ID": f"srt-{NEW}", "Kind": "dsort"}},
    ),
    Recorded(
        "wait: it was stopped",
        *("GET", "/v1/cluster", {"what": "status"}),
        body={"id": f"srt-{NEW}", "kind": "dsort", "bck": NO_BUCKET},
        answer=lambda said: (
            said["aborted"] and said["end_time"] > 1.7e18 and "aborted" in said["err"]
        ),
    ),
    Recorded("rm: one that ended", "DELETE", "/v1/sort", {"uuid": f"srt-{OLD}"}),
]


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[There]:
    """A client of a service that takes jobs in and runs none; there is a job that ended, ``OLD``,
    and one that waits, ``NEW``."""
    root = tmp_path_factory.mktemp("requests")
    (root / "in").mkdir()
    config = ServiceConfig(
        run=RunOptions(root=root),
        allow=("s3://gone",),
        state_dir=root / "state",
        database_url=f"sqlite:///{root}/service.db",
        replica="one",
        no_auth=True,
    )
    with Service(config, AistoreGuest()) as service:
        client = TestClient(create_app(service), base_url="http://127.0.0.1")
        made = {}
        for name in (OLD, NEW):
            answer = client.post("/v1/sort", json=SPEC | {"output_format": name + "-{0..9}"})
            made[name] = answer.text.removeprefix("srt-")
        with service.database.writing() as connection:
            ended = update(jobs).where(jobs.c.job_id == made[OLD])
            connection.execute(ended.values(state="finished", ended_at=2e9))
        yield client, made


@pytest.mark.parametrize("row", RECORDED, ids=lambda row: row.what)
def test_a_recorded_request_has_its_answer(there: There, row: Recorded) -> None:
    client, made = there

    def with_ids(text: str) -> str:
        return text.replace(OLD, made[OLD]).replace(NEW, made[NEW])

    answer = client.request(
        row.method,
        row.path,
        params={name: with_ids(value) for name, value in row.query.items()},
        content=None if row.body is None else with_ids(json.dumps(row.body)),
        headers={} if row.body is None else {"Content-Type": "application/json"},
    )
    assert answer.status_code == row.status, answer.text
    said = answer.text.replace(made[OLD], OLD).replace(made[NEW], NEW)
    if row.answer is None:
        assert answer.content == b""
    elif callable(row.answer):
        assert row.answer(json.loads(said)), said
    elif isinstance(row.answer, str):
        assert re.match(row.answer, said), said
    else:
        assert json.loads(said) == row.answer
