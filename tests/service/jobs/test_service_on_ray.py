"""``dsort serve --ray``: jobs that are submitted over REST run on a Ray of the service's own, give
the bytes that they give without, are stopped, and outlive a restart, as Ray does; which is gone
when the service ends. ``dsort serve --ray-address``: jobs join a Ray that is there."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from dsort.client import DsortClient, Job, StateChanged
from tests.support.fault_points import PointFault, arm, disarm, points_environment, struck
from tests.support.held_jobs import held_workers
from tests.support.internals import PhaseDone
from tests.support.service_process import end_marked, running_service
from tests.support.surviving import CASES, Facts, assert_whole, only_a_report, prepare, undisturbed

pytestmark = [pytest.mark.ray, pytest.mark.slow]

END_S = 90.0
PHASES = ["resolve", "extract", "plan", "create", "commit"]
SPEC = CASES["shuffle"].spec


@dataclass(frozen=True)
class Place:
    """A data root, and the mark of all that services on it start."""

    root: Path
    mark: str

    @property
    def arguments(self) -> list[str]:
        """Of a service."""
        state = str(self.root / "state")
        return ["--root", str(self.root), "--state-dir", state, "--no-auth", "--workers", "1"]

    @property
    def state_file(self) -> Path:
        """What the service knows of its Ray."""
        return self.root / "state" / "ray.json"

    def head(self) -> psutil.Process:
        """The head, which no other test may look for."""
        assert self.state_file.stat().st_mode & 0o777 == 0o600
        known = json.loads(self.state_file.read_bytes())
        head = psutil.Process(known["process"]["pid"])
        assert known["variables"]["RAY_AUTH_TOKEN"] not in " ".join(head.cmdline())
        return head

    def submit(self, client: DsortClient, output: str) -> Job:
        """Submit the shuffle into a bucket of its own."""
        (self.root / output).mkdir()
        return client.submit({**SPEC, "output_bck": output})


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    prepare(tmp_path, CASES["shuffle"])
    place = Place(tmp_path, secrets.token_hex(8))
    try:
        yield place
    finally:
        end_marked(place.mark)
        if place.state_file.exists():  # the test has failed
            shutil.rmtree(json.loads(place.state_file.read_bytes())["directory"])


@pytest.mark.exhaustive
def test_jobs_over_rest_run_on_a_ray_of_the_services_own(place: Place) -> None:
    expected = undisturbed("shuffle", place.root)
    faults = arm(place.root / "faults", PointFault("create:start", 2, "kill"))
    env = points_environment(faults)
    arguments = [*place.arguments, "--ray"]
    with running_service(place.root, *arguments, env=env, mark=place.mark) as service:
        with DsortClient(service.url) as client:
            watched = list(client.events(place.submit(client, "first").job_id))
            known = [each.value for each in watched]
            states = [each.state for each in known if isinstance(each, StateChanged)]
            assert states == ["queued", "running", "finished"]
            assert [each.phase for each in known if isinstance(each, PhaseDone)] == PHASES
            assert_whole(place.root / "first", expected)
            assert struck(faults) == ["create:start"]  # a worker within Ray, made good there
        head = place.head()
        below = head.children(recursive=True)
        assert service.stop() == 0
    assert psutil.wait_procs([head, *below], timeout=30)[1] == []
    assert not place.state_file.exists()


@pytest.mark.exhaustive
def test_a_service_that_ends_leaves_its_ray_to_a_job_that_runs(place: Place) -> None:
    faults = place.root / "faults"
    faults.mkdir()
    env = points_environment(faults)
    arguments = [*place.arguments, "--ray"]
    with running_service(place.root, *arguments, env=env, mark=place.mark) as service:
        with DsortClient(service.url) as client:
            hold_next(faults)
            second = place.submit(client, "second").job_id
            held_workers(service)
        head = place.head()
        below = head.children(recursive=True)
        assert service.stop() == 0  # the job runs, and so does Ray
        assert head.is_running()
    with running_service(place.root, *arguments, env=env, mark=place.mark) as service:
        with DsortClient(service.url) as client:
            assert client.stop(second, reason="enough").stopping
            job = client.wait(second, timeout_s=END_S)
            assert (job.state, job.attempt) == ("stopped", 1)
        only_a_report(place.root / "second")
        assert place.head() == head
        below += head.children(recursive=True)
        assert service.stop() == 0
    assert psutil.wait_procs([head, *below], timeout=30)[1] == []
    assert not place.state_file.exists()


@pytest.mark.exhaustive
def test_a_service_with_the_address_of_a_ray_runs_its_jobs_there_and_leaves_it(
    place: Place,
) -> None:
    expected = undisturbed("shuffle", place.root)
    with running_service(place.root, *place.arguments, "--ray", mark=place.mark) as service:
        with DsortClient(service.url) as client:
            job = client.wait(place.submit(client, "first").job_id, timeout_s=END_S)
            assert job.state == "finished"
        join_from_another_service(place, expected)
        assert service.stop() == 0
    assert not place.state_file.exists()


def join_from_another_service(place: Place, expected: Facts) -> None:
    """Another service runs a job on the Ray of the first."""
    known = json.loads(place.state_file.read_bytes())
    root = place.root / "elsewhere"
    prepare(root, CASES["shuffle"])
    other = Place(root, place.mark)
    joining = known["variables"]
    env = {name: joining[name] for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")}
    arguments = [*other.arguments, "--ray-address", joining["RAY_ADDRESS"]]
    with running_service(root, *arguments, env=env, mark=place.mark) as service:
        with DsortClient(service.url) as client:
            job = client.wait(other.submit(client, "first").job_id, timeout_s=END_S)
        assert (job.state, job.error) == ("finished", None)
        assert_whole(root / "first", expected)
        assert service.stop() == 0
    assert not other.state_file.exists()
    assert place.head().is_running()


def hold_next(faults: Path) -> None:
    """The next process that creates output shards stops there."""
    disarm(faults)
    arm(faults, PointFault("create:start", 1, "stop"))
