"""Actors pass both suites of runtimes; and what only Ray has: nodes, and more than one way
to come to it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from dsort.errors import SpecError, StorageError, WorkerLostError
from dsort.stop_flag import StopFlag
from tests.support.commands import SPEC, CommandLine
from tests.support.datasets import files_of, small_dataset, write_shards
from tests.support.engine import run_local
from tests.support.given_shards import note_given_shards
from tests.support.inline_runtime import run_inline
from tests.support.internals import TASK_TRIES_MAX, Runtime
from tests.support.ray_here import ray_here
from tests.support.refusals import raises
from tests.support.runtime_suite import OneRuntimeSuite, RuntimeSuite
from tests.support.runtime_work import Work, done_shards, lasting_runtime, release
from tests.support.web_server import web_server

pytestmark = pytest.mark.ray

ray = pytest.fixture(scope="module")(ray_here)

TOKENS = {"RAY_AUTH_MODE": "token"}
"""How a process joins the Ray of another one, by its address."""


def runtime_on(address: str | None, stop: StopFlag) -> Runtime:
    from tests.support.internals import RayRuntime

    return RayRuntime(address, 2, stop)


@pytest.fixture(scope="module")
def lasting(ray: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Runtime, Work]]:
    with lasting_runtime(lambda stop: runtime_on(None, stop), tmp_path_factory) as lasting:
        yield lasting


class TestRayRuntime(RuntimeSuite):
    workers = 1
    EXHAUSTIVE = (  # workers of Ray take seconds to start; the local runtime has these tests, too
        "test_the_next_attempt_has_the_scratch_that_was_kept_and_new_numbers",
        "test_a_task_that_kills_one_worker_after_another_is_named",
        "test_a_worker_that_dies_is_replaced_while_idle_and_in_the_midst_of_a_task",
        "test_a_worker_that_cannot_be_made_says_why",
        "test_a_request_to_stop_ends_the_start",
        "test_a_request_to_stop_ends_a_run_in_the_midst_of_a_task",
        "test_close_leaves_no_worker_behind_and_may_come_twice",
        "test_lines_of_workers_come_to_the_coordinator_with_worker_job_and_attempt",
    )

    @pytest.fixture
    def make_runtime(self, stop: StopFlag, ray: Any) -> Callable[[], Runtime]:
        return lambda: runtime_on(None, stop)

    def test_a_ray_that_was_there_is_used_and_stays(
        self, runtime: Runtime, work: Work, stop: StopFlag, ray: Any
    ) -> None:
        runtime.start(work.setup, 1)
        runtime.close()
        assert ray.is_initialized()
        again = runtime_on(ray.get_runtime_context().gcs_address, stop)
        try:
            again.start(work.setup, 1)
            assert done_shards(list(again.run(work.tasks(3)))) == [0, 1, 2]
        finally:
            again.close()
        assert ray.is_initialized()

    @pytest.mark.exhaustive
    def test_fewer_workers_than_wanted_do_all_of_the_work(
        self, runtime: Runtime, work: Work, ray: Any
    ) -> None:
        taken = ray.util.placement_group([{"CPU": 3}])
        assert taken.wait(60)
        try:
            runtime.start(work.setup, 2)
            shards = [task.shard for task in work.tasks()]
            assert done_shards(list(runtime.run(work.tasks()))) == shards
            assert ray.available_resources().get("CPU", 0) == 0
        finally:
            ray.util.remove_placement_group(taken)

    def test_the_number_of_workers_is_that_of_the_cpus_unless_it_is_given(
        self, runtime: Runtime, stop: StopFlag
    ) -> None:
        from tests.support.internals import RayRuntime

        assert runtime.workers_max() == 2
        assert RayRuntime(None, None, stop).workers_max() == 4
        assert RayRuntime(None, 7, stop).workers_max() == 7

    @pytest.mark.exhaustive
    def test_no_task_is_to_blame_if_all_workers_die_at_once(
        self, runtime: Runtime, work: Work
    ) -> None:
        runtime.start(work.setup, 4)
        marks = "abcd"
        tasks = [work.blocked(*each) for each in zip(work.tasks(4), marks, strict=True)]
        releasing = threading.Thread(target=release, args=(work, *marks))
        releasing.start()
        assert done_shards(list(runtime.run(tasks))) == [0, 1, 2, 3]
        releasing.join()
        below = psutil.Process().children(recursive=True)
        workers = [each for each in below if "DsortWorker" in each.name()]
        assert len(workers) > TASK_TRIES_MAX
        for worker in workers:
            worker.kill()
        psutil.wait_procs(workers, timeout=60)
        assert done_shards(list(runtime.run(work.tasks(1)))) == [0]

    def test_a_directory_that_a_node_does_not_see_is_refused(
        self, runtime: Runtime, tmp_path: Path, ray: Any
    ) -> None:
        (tmp_path / "token").touch()
        runtime.check_directory(str(tmp_path), "token")
        (node,) = ray.nodes()
        with pytest.raises(StorageError, match=node["NodeID"]) as caught:
            runtime.check_directory(str(tmp_path), "another")
        assert str(tmp_path) in caught.value.message
        assert node["NodeManagerHostname"] in caught.value.message
        assert node["NodeManagerAddress"] in caught.value.message

    def test_an_address_of_another_ray_is_refused(self, stop: StopFlag, ray: Any) -> None:
        with raises(WorkerLostError, "127.0.0.1:1"):
            runtime_on("127.0.0.1:1", stop)

    def test_an_unreadable_address_is_a_mistake_of_the_command_line(self, stop: StopFlag) -> None:
        with raises(SpecError, "'here'", paths=["--ray-address"]):
            runtime_on("here", stop)

    @pytest.mark.exhaustive
    def test_a_job_joins_a_cluster_by_its_address(
        self, ray: Any, command: CommandLine, tmp_path: Path
    ) -> None:
        address = ray.get_runtime_context().gcs_address
        write_shards(tmp_path / "images", small_dataset(3))
        run_inline(SPEC, tmp_path)
        expected = files_of(tmp_path / "shuffled")
        spec = SPEC | {"output_bck": "on-cluster"}
        ended = command(
            *("start", "-f", json.dumps(spec), "--ray-address", "auto"),
            *("--workers", "1", "--json"),
            env={"RAY_ADDRESS": address, **TOKENS},
        )
        assert ended.code == 0, ended.err
        assert json.loads(ended.out)["workers"] == 1
        assert files_of(tmp_path / "on-cluster") == expected != {}
        assert ray.is_initialized()

    @pytest.mark.exhaustive
    def test_a_cluster_that_wants_a_token_says_so(
        self, ray: Any, command: CommandLine, tmp_path: Path
    ) -> None:
        address = ray.get_runtime_context().gcs_address
        write_shards(tmp_path / "images", small_dataset(3))
        ended = command(
            *("start", "-f", json.dumps(SPEC), "--ray-address", address),
            env={"RAY_AUTH_MODE": "disabled"},
        )
        assert ended.code == WorkerLostError.exit_code
        assert f"the Ray cluster at {address} requires a token" in ended.err
        assert "hint: set RAY_AUTH_MODE=token" in ended.err
        assert "Traceback" not in ended.err


class TestOneRayRuntime(OneRuntimeSuite):
    """Comes last: it keeps half of the CPUs."""


@pytest.mark.exhaustive
def test_workers_fetch_ahead_from_a_store_and_are_given_what_they_fetched(
    ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_shards(tmp_path / "in", small_dataset(1, shards=7))
    spec = {**SPEC, "input_bck": "in", "output_bck": "out"}
    run_inline(spec, tmp_path)
    given = note_given_shards(monkeypatch)
    with web_server(tmp_path) as server:
        far = {"input_bck": f"http://{server.host}/in", "input_format": {"template": "in-{0..6}"}}
        run_local(tmp_path, {**spec, **far, "output_bck": "far"}, runtime="ray", workers=2)
        asked = [each for each in server.requests if each.startswith("GET")]
    assert files_of(tmp_path / "far", "*") == files_of(tmp_path / "out", "*")
    assert sorted(each.shard for each in given) == list(range(7))
    assert {each.follows for each in given} - {-1}, "something is fetched ahead"
    in_turn = [each for each in given if each.fetched == each.shard]
    assert in_turn, "what is fetched ahead is what the worker gets"
    assert len(asked) <= 10, "few shards are fetched twice: of seven, five follow another"
