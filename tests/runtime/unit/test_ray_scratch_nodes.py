"""Scratch nodes on Ray, without a cluster: which nodes may have one, what its agent answers, and
what becomes of a request that is not answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import NodeDiedError

from dsort.errors import (
    DsortError,
    InvariantError,
    ObjectNotFoundError,
    ScratchLostError,
    SpecError,
    StorageError,
    WorkerLostError,
)
from dsort.stop_flag import StopFlag
from tests.support.internals import (
    ANSWER_SECONDS_MAX,
    BlockPlace,
    BlockRules,
    GetTimeoutError,
    Needs,
    NodeAgent,
    RayError,
    RayExchange,
    RayScratchNodes,
    RayTaskError,
    agent_name,
    exchange,
    located,
    node_of,
    node_slot_of,
    scratch_nodes,
)
from tests.support.refusals import raises
from tests.support.traps import FileBytes

OWNER = {"job_id": "job-1"}
BY_RAY = BlockRules(None, BlockPlace())


class RaisedError(RayTaskError):
    """What a call of an actor raised, without the process that it was in."""

    def __init__(self, text: str) -> None:
        Exception.__init__(self, text)

    __str__ = Exception.__str__


@dataclass
class Method:
    """``remote`` gives a reference: the call itself, which is made when its result is read."""

    call: Callable[..., Any]

    def remote(self, *given: Any) -> Callable[[], Any]:
        return lambda: self.call(*given)


def actor_of(agent: NodeAgent) -> Any:
    """What Ray makes of an agent."""
    return SimpleNamespace(
        open=Method(lambda names, *files: agent.open(dict(zip(names, files, strict=True)))),
        answer=Method(agent.answer),
        store=Method(agent.store),
        close=Method(agent.close),
    )


@dataclass
class Ray:
    """Agents by name, and nodes by id. ``error``: what all answers end with."""

    agents: dict[str, Any] = field(default_factory=dict)
    alive: dict[str, bool] = field(default_factory=dict)
    killed: list[Any] = field(default_factory=list)
    error: Exception | None = None

    def get_actor(self, name: str, namespace: str) -> Any:
        assert namespace == "dsort"
        if name not in self.agents:
            raise ValueError(name)
        return self.agents[name]

    def get(self, reference: Callable[[], Any], timeout: float | None = None) -> Any:
        if self.error is not None:
            raise self.error
        return reference()

    def wait(self, references: list[Any], **given: object) -> tuple[list[Any], list[Any]]:
        return references, []

    def nodes(self) -> list[dict[str, object]]:
        return [{"NodeID": key, "Alive": value} for key, value in self.alive.items()]

    def kill(self, actor: Any) -> None:
        self.killed.append(actor)

    def put(self, value: Any) -> Any:
        return value


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Ray:
    """In place of the library."""
    ray = Ray()
    monkeypatch.setattr(scratch_nodes, "ray", ray)
    monkeypatch.setattr(exchange, "ray", ray)
    return ray


@pytest.fixture
def agent(tmp_path: Path) -> NodeAgent:
    agent = NodeAgent(str(tmp_path / "scratch"), "n1", OWNER, "10.0.0.5")
    assert isinstance(agent.open({"shared": b"data"}), str)
    return agent


def scratch_node_of(agent: NodeAgent) -> str:
    return str(agent.open({}))


# --- nodes --------------------------------------------------------------------------------------


def node(
    cpus: float, labels: Mapping[str, str] | None = None, **resources: float
) -> dict[str, Any]:
    return {"Alive": True, "Resources": {"CPU": cpus, **resources}, "Labels": labels}


@pytest.mark.parametrize(
    ("needs", "workers"),
    [
        (Needs(), [4, 2, 0]),
        (Needs({"slot": 1}), [0, 2, 0]),
        (Needs({"slot": 2}), [0, 1, 0]),
        (Needs({"slot": 0.5}), [0, 2, 0]),
        (Needs({}, {"zone": "a"}), [4, 0, 0]),
        (Needs({}, {"zone": "!a"}), [0, 2, 0]),
        (Needs({}, {"zone": "in(a, b)"}), [4, 2, 0]),
        (Needs({}, {"zone": "!in(b, c)"}), [4, 0, 0]),
        (Needs({}, {"zone": "b", "disk": "ssd"}), [0, 0, 0]),
        (Needs({}, {"disk": "!ssd"}), [4, 2, 0]),
    ],
    ids=str,
)
def test_a_node_hosts_as_many_workers_as_it_has_what_they_need(
    needs: Needs, workers: list[int]
) -> None:
    nodes = [node(4, {"zone": "a"}), node(2, {"zone": "b"}, slot=3), node(0)]
    assert [needs.workers(each) for each in nodes] == workers
    assert needs.hosts(nodes) == [each for each in nodes if needs.workers(each)]


def test_a_dead_node_hosts_none() -> None:
    assert Needs().workers(node(4) | {"Alive": False}) == 0


@pytest.mark.parametrize("resources", [{"CPU": 2}, {"slot": 0}, {"slot": -1}, {"": 1}])
def test_what_is_no_custom_resource_is_refused(resources: dict[str, float]) -> None:
    with raises(SpecError, "--ray-resources"):
        Needs(resources)


# --- agents -------------------------------------------------------------------------------------


def test_an_agent_made_again_has_the_same_scratch_and_keeps_newer_files(
    agent: NodeAgent, tmp_path: Path
) -> None:
    agent.store("shared", b"newer")
    again = NodeAgent(str(tmp_path / "scratch"), "n1", OWNER, None)
    assert again.open({"shared": b"data", "other": b"o"}) == scratch_node_of(agent)
    for name, data in (("shared", b"newer"), ("other", b"o")):
        assert again.answer(scratch_node_of(agent), FileBytes(name)) == data


def test_a_scratch_node_made_after_a_loss_is_another_and_takes_its_room(
    agent: NodeAgent, tmp_path: Path
) -> None:
    other = NodeAgent(str(tmp_path / "scratch"), "n1-1", OWNER, None)
    assert scratch_node_of(other) != scratch_node_of(agent)
    assert (
        node_of(node_slot_of(scratch_node_of(other)))
        == node_of(node_slot_of(scratch_node_of(agent)))
        == "n1"
    )
    assert [path.name for path in (tmp_path / "scratch").iterdir()] == ["n1-1"]
    answer = other.answer(scratch_node_of(agent), FileBytes("shared"))
    assert isinstance(answer, ScratchLostError)


def test_errors_name_the_node_where_there_is_more_than_one(
    agent: NodeAgent, tmp_path: Path
) -> None:
    error = agent.answer(scratch_node_of(agent), FileBytes("missing"))
    assert isinstance(error, ObjectNotFoundError)
    assert "(10.0.0.5, n1))" in error.message
    alone = NodeAgent(str(tmp_path / "scratch"), "n1", OWNER, None)
    error = alone.answer(scratch_node_of(agent), FileBytes("missing"))
    assert isinstance(error, ObjectNotFoundError)
    assert "n1)" not in error.message


def test_where_there_can_be_no_scratch_the_node_is_named(tmp_path: Path) -> None:
    (tmp_path / "scratch").touch()
    error = NodeAgent(str(tmp_path / "scratch"), "n1", OWNER, "10.0.0.5").open({"a": b""})
    assert isinstance(error, StorageError)
    assert "10.0.0.5" in error.message


def test_the_end_of_a_scratch_node_is_the_end_of_its_files_unless_they_are_kept(
    agent: NodeAgent, tmp_path: Path
) -> None:
    (tmp_path / "scratch" / "of-a-node-that-is-gone").mkdir()
    agent.close([], keep=True)
    assert agent.answer(scratch_node_of(agent), FileBytes("shared")) == b"data"
    agent.close([], keep=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (StorageError("no room"), "no room (worker 3 on node 10.0.0.5)"),
        (InvariantError("a bug"), "a bug (worker 3 on node 10.0.0.5)"),
        (SpecError("wrong"), "wrong"),
    ],
)
def test_errors_of_a_place_say_where(error: DsortError, shown: str) -> None:
    assert str(located(error, "worker 3 on node 10.0.0.5")) == shown
    assert error.args == (shown,)


# --- questions ----------------------------------------------------------------------------------


def test_a_worker_asks_the_agent_that_has_the_scratch_node(agent: NodeAgent, ray: Ray) -> None:
    ray.agents[agent_name("job-1-x", "n1")] = actor_of(agent)
    asking = RayExchange("job-1-x", BY_RAY)
    assert asking.begin(scratch_node_of(agent), FileBytes("shared"))() == b"data"
    ray.agents.clear()
    assert asking.begin(scratch_node_of(agent), FileBytes("shared"))() == b"data", (
        "it is known by now"
    )
    with pytest.raises(ObjectNotFoundError, match="missing"):
        asking.begin(scratch_node_of(agent), FileBytes("missing"))()


@pytest.mark.usefixtures("ray")
def test_a_scratch_node_without_an_agent_is_lost() -> None:
    asking = RayExchange("job-1-x", BY_RAY)
    for scratch_node in ("token@n1", "nonsense"):
        with pytest.raises(ScratchLostError) as caught:
            asking.begin(scratch_node, FileBytes("shared"))
        assert caught.value.node == scratch_node


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (NodeDiedError("gone"), ScratchLostError, "the scratch on node n1 is lost"),
        (
            GetTimeoutError(),
            WorkerLostError,
            f"node n1 gave no answer in {ANSWER_SECONDS_MAX} seconds",
        ),
        (RaisedError("Traceback"), InvariantError, "node n1 failed:\nTraceback"),
        (RayError("disk"), WorkerLostError, "Ray failed to bring an answer of node n1: disk"),
    ],
)
def test_what_ray_raises_is_reported_with_the_node(
    agent: NodeAgent, ray: Ray, error: Exception, kind: type[Exception], words: str
) -> None:
    ray.agents[agent_name("job-1-x", "n1")] = actor_of(agent)
    ask = RayExchange("job-1-x", BY_RAY).begin(scratch_node_of(agent), FileBytes("shared"))
    ray.error = error
    with pytest.raises(kind) as caught:
        ask()
    assert type(caught.value) is kind
    assert str(caught.value) == words


# --- the coordinator's side ---------------------------------------------------------------------


@pytest.fixture
def stop() -> Any:
    with StopFlag() as flag:
        yield flag


class Cluster(Ray):
    """Nodes whose agents are started when they are needed."""

    def __init__(self, scratch: Path, stop: StopFlag) -> None:
        super().__init__(alive={"n1": True, "n2": True})
        self._scratch = scratch
        self.lost_on: list[str] = []
        self.scratch_nodes = RayScratchNodes(self.launch, stop)
        self.scratch_nodes.on_lost = self.lost_on.append

    def launch(self, node_id: str, node_slot: str) -> Any:
        return actor_of(NodeAgent(str(self._scratch / node_id), node_slot, OWNER, node_id))


@pytest.fixture
def cluster(tmp_path: Path, stop: StopFlag, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster(tmp_path, stop)
    monkeypatch.setattr(scratch_nodes, "ray", cluster)
    return cluster


def test_a_file_is_shared_with_scratch_nodes_that_come_later(cluster: Cluster) -> None:
    cluster.scratch_nodes.scratch_ref("n1")
    cluster.scratch_nodes.wait()
    cluster.scratch_nodes.share("shared", b"data")
    cluster.scratch_nodes.scratch_ref("n2")
    scratch_nodes = cluster.scratch_nodes.scratch_nodes()
    assert [node_slot_of(scratch_node) for scratch_node in scratch_nodes] == ["n1", "n2"]
    assert [
        cluster.scratch_nodes.ask(scratch_node, FileBytes("shared"))
        for scratch_node in scratch_nodes
    ] == [b"data"] * 2


def test_a_scratch_node_that_one_process_could_not_reach_is_used_no_more(cluster: Cluster) -> None:
    cluster.scratch_nodes.scratch_ref("n1")
    (scratch_node,) = cluster.scratch_nodes.scratch_nodes()
    cluster.scratch_nodes.lose(scratch_node)
    cluster.scratch_nodes.lose(scratch_node)
    assert cluster.lost_on == ["n1"], "its workers are to be replaced, once"
    assert len(cluster.killed) == 1
    with pytest.raises(ScratchLostError):
        cluster.scratch_nodes.ask(scratch_node, FileBytes("x"))
    cluster.scratch_nodes.scratch_ref("n1")
    (again,) = cluster.scratch_nodes.scratch_nodes()
    assert node_slot_of(again) == "n1-1"
    cluster.scratch_nodes.lose(scratch_node)
    assert cluster.scratch_nodes.scratch_nodes() == (again,), (
        "a late word about the old one does not matter"
    )


def test_a_scratch_directory_goes_with_its_node(cluster: Cluster) -> None:
    for node_id in cluster.alive:
        cluster.scratch_nodes.scratch_ref(node_id)
    first, second = cluster.scratch_nodes.scratch_nodes()
    cluster.alive["n1"] = False
    assert cluster.scratch_nodes.scratch_nodes() == (second,)
    cluster.error = NodeDiedError("gone")
    with pytest.raises(ScratchLostError) as caught:
        cluster.scratch_nodes.ask(second, FileBytes("x"))
    assert caught.value.node == second
    assert cluster.scratch_nodes.scratch_nodes() == ()
    assert cluster.lost_on == ["n1", "n2"]
    assert first != second
