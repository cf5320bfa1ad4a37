"""``DsortClient`` and a running service: everything the service does is there in Python, in typed
values, with the library's own errors; also while the service is started anew."""

from __future__ import annotations

import asyncio
import inspect
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import dsort
from dsort.client import (
    AsyncClient,
    DsortClient,
    JobEnded,
    JobEvent,
    Patience,
    StateChanged,
    WaitTimeoutError,
)
from dsort.errors import (
    NotFoundError,
    ObjectNotFoundError,
    ServiceError,
    SpecError,
)
from tests.support.datasets import files_of, small_dataset, write_shards
from tests.support.engine import run_local, spec_of
from tests.support.fault_points import points_environment
from tests.support.held_jobs import held_workers, holding, let_go
from tests.support.internals import JobStarted, PhaseDone, Progress
from tests.support.refusals import raises
from tests.support.service_process import ServiceProcess, end_marked, running_service

# A test that hangs is not to hold up the others, which have the same service.
pytestmark = pytest.mark.timeout(120, func_only=True)

SHUFFLE = {"algorithm": {"kind": "shuffle", "seed": 5}, "output_shard_records": 7}
END_S = 180.0
PHASES = ["resolve", "extract", "plan", "create", "commit"]


class Place:
    """A data root with a bucket ``in``, and the arguments of services on it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.faults = root / "faults"
        self.faults.mkdir()
        write_shards(root / "in", small_dataset("client", shards=3, records=12))
        self.arguments = ["--root", str(root), "--state-dir", str(root / "state"), "--no-auth"]
        self.arguments += ["--workers", "1", "--aistore"]
        self.env = points_environment(self.faults)
        self.made = 0

    def spec(self, **fields: Any) -> dict[str, Any]:
        """A shuffle into a bucket of its own."""
        self.made += 1
        return spec_of(**{"output_bck": f"out-{self.made}", **SHUFFLE, **fields})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("client"))


@pytest.fixture(scope="module")
def service(place: Place) -> Iterator[ServiceProcess]:
    with running_service(place.root, *place.arguments, env=place.env) as service:
        yield service


@pytest.fixture
def client(service: ServiceProcess) -> Iterator[DsortClient]:
    with DsortClient(service.url) as client:
        yield client


def values(events: list[JobEvent], kind: type) -> list[Any]:
    return [each.value for each in events if isinstance(each.value, kind)]


def test_a_job_is_submitted_watched_and_looked_at(place: Place, client: DsortClient) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    spec = place.spec(description="a shuffle")
    submitted = client.submit(spec, priority=3, labels=["nightly", "a"])
    assert (submitted.owner, submitted.priority, submitted.labels) == (
        "anyone",
        3,
        ("a", "nightly"),
    )
    heard: list[JobEvent] = []
    job = client.wait(submitted.job_id, timeout_s=END_S, on_event=heard.append)
    job.raise_if_failed()
    assert (job.state, job.exit_code, job.ended, job.description) == (
        "finished",
        0,
        True,
        "a shuffle",
    )
    assert files_of(place.root / spec["output_bck"]) == files_of(
        Path(run_local(place.root, {**spec, "output_bck": "here"}).output_uri.removeprefix("file:"))
    )
    # What happened:
    numbers = [each.number for each in heard]
    assert numbers == sorted(numbers)
    assert [each.state for each in values(heard, StateChanged)] == ["queued", "running", "finished"]
    assert [each.input_shards for each in values(heard, JobStarted)] == [3]
    assert [each.phase for each in values(heard, PhaseDone)] == PHASES
    assert {each.job_id for each in values(heard, Progress)} == {job.job_id}
    assert heard[-1].value == JobEnded(job.job_id, "finished", 0)
    behind = list(client.events(job.job_id, after=heard[-3].number))
    assert behind == [each for each in heard if each.number > heard[-3].number]
    # What there is of it:
    assert job.result is not None
    manifest = client.manifest(job.job_id)
    assert manifest["totals"]["records"] == job.result.records == 36
    assert client.report(job.job_id) == job.result
    assert [each.phase for each in job.phases] == PHASES
    assert "running" in client.log(job.job_id)
    assert "".join(client.follow_log(job.job_id)) == client.log(job.job_id)
    assert client.page(job.job_id)["job"]["job_id"] == job.job_id
    # And how it is found:
    assert client.find(job.job_id[:-2]) == client.get(job.job_id) == job
    for filters in (
        {"state": "finished"},
        {"state": ["queued", "finished"], "owner": "anyone"},
        {"label": ["a", "nightly"], "kind": "run"},
        {"since": before, "text": job.job_id[:-1]},
    ):
        assert job.job_id in [each.job_id for each in client.list(**filters)]
    for filters in ({"state": "failed"}, {"label": "b"}, {"since": before + timedelta(days=1)}):
        assert job.job_id not in [each.job_id for each in client.list(**filters)]


def test_errors_are_the_librarys_own(place: Place, client: DsortClient) -> None:
    with pytest.raises(SpecError) as refused:
        client.submit(spec_of(output_format=3, algoritm={}))
    paths = {each.path for each in refused.value.problems}
    assert {"output_format", "algoritm"} <= paths
    with pytest.raises(SpecError) as invalid:
        client.validate(spec_of(output_format=3, algoritm={}))
    assert invalid.value.problems == refused.value.problems
    failed = client.wait(client.submit(place.spec(input_bck="in/nothing")).job_id, timeout_s=END_S)
    assert (failed.state, failed.exit_code) == ("failed", 4)
    with pytest.raises(ObjectNotFoundError):
        failed.raise_if_failed()
    retried = client.retry(failed.job_id)
    assert retried.job_id != failed.job_id
    assert client.wait(retried.job_id, timeout_s=END_S).state == "failed"
    with pytest.raises(NotFoundError):
        client.manifest(failed.job_id)
    with pytest.raises(NotFoundError):
        client.get("20260131-000000-000000")
    with pytest.raises(NotFoundError):
        client.get("../schema")


@pytest.mark.exhaustive
def test_watching_goes_on_over_the_death_of_the_service(tmp_path: Path) -> None:
    place, mark = Place(tmp_path), secrets.token_hex(8)
    seen: list[JobEvent] = []
    try:
        with holding(place.faults):
            with running_service(tmp_path, *place.arguments, env=place.env, mark=mark) as first:
                client = DsortClient(first.url, patience=Patience(reconnect_max_s=60))
                job_id = client.submit(place.spec()).job_id
                workers = held_workers(first)
                events = client.events(job_id)
                seen.append(next(events))
                first.kill()
            port = str(urlsplit(first.url).port)
            arguments = [*place.arguments, "--port", port]
            with running_service(tmp_path, *arguments, env=place.env, mark=mark), client:
                let_go(workers)
                seen.extend(events)
                assert client.get(job_id).state == "finished"
    finally:
        end_marked(mark)
    assert seen[-1].value == JobEnded(job_id, "finished", 0)
    assert [each.phase for each in values(seen, PhaseDone)] == PHASES
    numbers = [each.number for each in seen[:-1]]
    assert numbers == sorted(set(numbers))
    with raises(ServiceError, "http://127.0.0.1"):
        DsortClient(client.url, patience=Patience(attempts=1)).get(job_id)


# --- the same, awaited ----------------------------------------------------------------------------


def methods(kind: type) -> dict[str, list[tuple[str, Any]]]:
    return {
        name: [(each.name, each.default) for each in inspect.signature(made).parameters.values()]
        for name, made in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


def test_the_async_client_has_the_methods_of_the_other_one(service: ServiceProcess) -> None:
    assert methods(AsyncClient) == methods(DsortClient)
    with DsortClient(service.url) as plain:
        awaited = AsyncClient(service.url)
        for part in ("schedules", "transforms", "tokens", "data"):
            found = methods(type(getattr(awaited, part)))
            assert found.items() <= methods(type(getattr(plain, part))).items()
        asyncio.run(awaited.close())


@pytest.mark.exhaustive
def test_a_job_is_submitted_and_watched_from_an_event_loop(
    place: Place, service: ServiceProcess
) -> None:
    async def use() -> None:
        async with AsyncClient(service.url) as client:
            submitted = await client.submit(place.spec(), labels=(name for name in ["loop"]))
            events = [event async for event in client.events(submitted.job_id)]
            assert values(events, JobEnded)[0].state == "finished"
            heard: list[JobEvent] = []
            job = await client.wait(submitted.job_id, timeout_s=END_S, on_event=heard.append)
            assert (job.state, job.labels) == ("finished", ("loop",))
            assert [event.number for event in heard] == [event.number for event in events]
            report = await client.report(job.job_id)
            assert report == job.result
            assert (await client.manifest(job.job_id))["job_id"]
            pieces = [piece async for piece in client.follow_log(job.job_id)]
            assert "".join(pieces) == await client.log(job.job_id)
            assert (await client.find(job.job_id[:-1])).job_id == job.job_id
            listed = [each.job_id async for each in client.list(label="loop", limit=5)]
            assert listed == [job.job_id]
            assert (await client.validate(place.spec())).ok
            assert (await client.whoami()).role == "admin"
            with raises(SpecError, paths=["output_format"]):
                await client.submit({"input_bck": "in"})
            with pytest.raises(NotFoundError):
                await client.get("20260101-000000-000000")
            with pytest.raises(NotFoundError):
                [event async for event in client.events("20260101-000000-000000")]

    asyncio.run(use())


def test_an_async_wait_ends_in_time_and_says_when_no_service_answers(
    place: Place, service: ServiceProcess
) -> None:
    async def use() -> None:
        async with AsyncClient(service.url) as client:
            with holding(place.faults, service):
                job = await client.submit(place.spec())
                held_workers(service)
                with pytest.raises(WaitTimeoutError):
                    await client.wait(job.job_id, timeout_s=0.5)
                await client.stop(job.job_id, reason="enough")
                stopped = await client.wait(job.job_id, timeout_s=END_S)
            assert stopped.state == "stopped"
        told: list[str] = []
        impatient = Patience(attempts=2, delay_s=0.01)
        absent = AsyncClient("http://127.0.0.1:9", patience=impatient, on_wait=told.append)
        with raises(ServiceError, "http://127.0.0.1:9"):
            await absent.whoami()
        await absent.close()

    asyncio.run(use())


@pytest.mark.exhaustive
def test_the_data_of_buckets_is_looked_at_by_methods_and_from_an_event_loop(
    place: Place, client: DsortClient, service: ServiceProcess
) -> None:
    name, *others = sorted(path.name for path in (place.root / "in").glob("*.tar"))
    with dsort.open(place.root / "in" / name) as shard:
        wanted = [(record.key, list(record.sizes), record.members) for record in shard]
    data = client.data
    assert [row["name"] for row in data.shards("in", text=".tar")] == [name, *others]
    rows = list(data.records("in", name))
    assert [(row["key"], [m["name"] for m in row["members"]]) for row in rows] == [
        (key, names) for key, names, _ in wanted
    ]
    assert [row["key"] for row in data.records("in", name, first=len(wanted) - 2)] == [
        key for key, *_ in wanted[-2:]
    ]
    assert [row["number"] for row in data.show("in", name, 3, 1)] == [3, 1]
    assert len(data.sample("in", name, 2, seed="a")) == 2
    assert data.read("in", name, 1, 0) == next(iter(wanted[1][2].values()))
    client.transforms.put("first-of", {"steps": [{"slice": "0:1"}]})
    assert data.changed("in", name, 0, "first-of")["before"]["key"] == wanted[0][0]
    client.transforms.remove("first-of")
    with pytest.raises(NotFoundError):
        data.read("in", "none.tar", 0)

    async def use() -> None:
        async with AsyncClient(service.url) as awaited:
            data = awaited.data
            assert [row["name"] async for row in data.shards("in")] == [name, *others]
            assert [row["key"] async for row in data.records("in", name)] == [
                key for key, *_ in wanted
            ]
            assert (await data.show("in", name, 3))[0]["key"] == wanted[3][0]
            assert len(await data.sample("in", name, 2)) == 2
            assert await data.read("in", name, 1, 0) == next(iter(wanted[1][2].values()))

    asyncio.run(use())
