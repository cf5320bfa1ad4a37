"""A cluster of several nodes that share no scratch gives the bytes that one machine gives, also
when it loses nodes; and what it takes: a node on each node, and payload from node to node."""

from __future__ import annotations

import filecmp
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pytest

from dsort import api
from dsort.errors import (
    InvariantError,
    ScratchLostError,
    SpecError,
    StorageAccessError,
    StorageError,
)
from dsort.options import RunOptions
from dsort.settings import Settings
from dsort.spec.load import parse_spec
from dsort.stop_flag import StopFlag
from tests.support.datasets import Member, Shard, files_of, small_dataset, write_shards
from tests.support.fault_points import PointFault, struck
from tests.support.inline_runtime import run_inline
from tests.support.internals import (
    BlockKey,
    BlockPlace,
    Event,
    Indexed,
    JobReport,
    JobWarning,
    Payload,
    PhaseDone,
    Progress,
    Runtime,
    Scratch,
    ShardExtracted,
    SpillBlock,
    SpillWriter,
)
from tests.support.ray_cluster import (
    NODES,
    OBJECT_STORE_BYTES,
    Nodes,
    SharedCluster,
    shared_cluster,
)
from tests.support.refusals import raises
from tests.support.runtime_work import SHARDS, Work, done_shards, make_work, release
from tests.support.traps import FileBytes, LocatedTask

if TYPE_CHECKING:
    from tests.support.internals import RayExchange

KEY = BlockKey.new()
"""Of all exchanges here: an agent keeps the one that it was given first."""

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> SharedCluster:
    return shared_cluster(tmp_path_factory)


@pytest.fixture(scope="module")
def shared(cluster: SharedCluster) -> Nodes:
    return cluster.nodes


SHUFFLE = {"algorithm": {"kind": "shuffle", "seed": "s"}, "verify": "content"}


@pytest.fixture
def nodes(shared: Nodes) -> Nodes:
    shared.heal()
    return shared


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root with a bucket ``in``, whose last shard repeats keys of its first."""
    root = tmp_path_factory.mktemp("data")
    shards = small_dataset("cluster", shards=11, records=20)
    again = [replace(each, payload=b"9" + each.payload) for each in shards["in-0.tar"].members]
    write_shards(root / "in", shards | {"in-11.tar": Shard((*again, Member("z.txt", b"z")))})
    return root


def run(
    root: Path,
    bucket: str,
    move: str,
    spec: Mapping[str, Any],
    on_event: Callable[[Event], None] = lambda event: None,
    settings: Settings | None = None,
) -> JobReport:
    whole = {"input_bck": "in", "output_bck": bucket, "output_format": "out-%03d", **spec}
    options = RunOptions(
        root=root,
        runtime="ray",
        move=move,
        scratch=root / "scratch",
        settings=settings or Settings(),
    )
    whole.setdefault("output_shard_size", 16000)
    return api.run(parse_spec(whole).spec, options=options, on_event=on_event)


def expected(root: Path, bucket: str, spec: Mapping[str, Any]) -> dict[str, bytes]:
    """What one process on one machine makes of it."""
    whole = {"input_bck": "in", "output_bck": bucket, "output_format": "out-%03d", **spec}
    run_inline({"output_shard_size": 16000, **whole}, root)
    return files_of(root / bucket)


# --- jobs ---------------------------------------------------------------------------------------


class Loss:
    """Ends the node that has most index files when a job has come so far."""

    def __init__(self, nodes: Nodes, scratch: Path, moment: str) -> None:
        self._nodes = nodes
        self._scratch = scratch
        self._moment = moment
        self.node_id = ""
        self.warned = False

    def __call__(self, event: Event) -> None:
        self.warned |= isinstance(event, JobWarning) and event.kind == "node_lost"
        if not self.node_id and self._is_now(event):
            nodes = list(self._scratch.glob("*/*"))
            assert nodes
            _, self.node_id = max((len(list(node.glob("index-*"))), node.name) for node in nodes)
            self._nodes.lose(self.node_id, self._scratch)

    def _is_now(self, event: Event) -> bool:
        if isinstance(event, Progress):
            return event.phase == self._moment and event.shards_done > 3
        return isinstance(event, PhaseDone) and f"after {event.phase}" == self._moment


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize("moment", ["extract", "after extract", "create"])
def test_a_job_that_loses_a_node_gives_the_same_bytes(
    nodes: Nodes, root: Path, moment: str
) -> None:
    loss = Loss(nodes, root / "scratch", moment)
    run(root, f"lost-{moment}", "spill", SHUFFLE, on_event=loss)
    assert loss.node_id
    assert loss.warned
    assert files_of(root / f"lost-{moment}") == expected(root, f"kept-{moment}", SHUFFLE)
    assert list((root / "scratch").rglob("*")) == []


@pytest.mark.exhaustive
def test_a_job_that_begins_just_after_a_node_died_does_without_it(nodes: Nodes, root: Path) -> None:
    dead = nodes.ids[0]
    nodes.silence(dead)
    heard: list[Event] = []
    try:
        assert nodes.believed(dead), "so that the job asks it"
        run(root, "begun-after-a-loss", "map", SHUFFLE, on_event=heard.append)
        assert not nodes.believed(dead)
    finally:
        nodes.lose(dead, root / "scratch")
    warned = [each for each in heard if isinstance(each, JobWarning) and each.kind == "node_lost"]
    assert [dead in each.text for each in warned] == [True]
    assert files_of(root / "begun-after-a-loss") == expected(root, "begun-before", SHUFFLE)


def test_a_node_that_dies_while_it_is_asked_is_waited_for_no_longer(
    nodes: Nodes, stop: StopFlag, tmp_path: Path
) -> None:
    """Even where Ray, that knows of its death, goes on to wait for its answer."""
    import ray

    from tests.support.internals import RayRuntime

    dead = nodes.ids[0]
    nowhere = ray.remote(num_cpus=0, resources={"nowhere": 1})(lambda: True)
    asked = []

    def ask(node: Mapping[str, Any]) -> Any:
        if node["NodeID"] != dead:
            return ray.put(True)
        nodes.lose(dead, tmp_path)
        asked.append(nowhere.remote())
        return asked[-1]

    blind, gone = RayRuntime(None, None, stop)._look(ask)
    ray.cancel(asked[0])
    assert len(asked) == 1
    assert (blind, [dead in each for each in gone]) == ([], [True])


def dealt_out(root: Path, shard_count: int, **options: Any) -> tuple[list[str], list[Event]]:
    """Sort records of 1 MiB, 16 a shard, there and here: the shards, which are equal, and what the
    job there said."""
    size, heard = 1 << 20, list[Event]()
    shards = {
        f"in-{number:02}.tar": Shard(
            tuple(Member(f"{number:02}{at:02}.bin", os.urandom(size)) for at in range(16))
        )
        for number in range(shard_count)
    }
    write_shards(root / "in", shards)
    spec = {"algorithm": {"kind": "md5"}, "output_shard_size": 20 * size}
    run(root, "there", "spill", spec, on_event=heard.append, **options)
    whole = {"input_bck": "in", "output_bck": "here", "output_format": "out-%03d", **spec}
    api.run(parse_spec(whole).spec, options=RunOptions(root=root, workers=1))
    names = sorted(path.name for path in (root / "here").glob("*.tar"))
    equal, _, _ = filecmp.cmpfiles(root / "here", root / "there", names, shallow=False)
    assert equal == names != []
    return names, heard


def slow_exchanges(heard: list[Event]) -> list[str]:
    return [e.text for e in heard if isinstance(e, JobWarning) and e.kind == "slow_exchange"]


@pytest.mark.exhaustive
def test_payload_goes_from_node_to_node_and_through_no_object_store(
    nodes: Nodes, tmp_path: Path
) -> None:
    _, heard = dealt_out(tmp_path, 3)
    assert max(nodes.object_store_bytes().values()) < 1 << 20
    assert slow_exchanges(heard) == []


@pytest.mark.exhaustive
def test_a_job_by_ray_that_is_larger_than_all_object_stores_needs_no_more_of_them(
    nodes: Nodes, tmp_path: Path
) -> None:
    assert NODES * OBJECT_STORE_BYTES < 16 * 16 << 20
    _, heard = dealt_out(tmp_path, 16, settings=Settings(exchange="ray"))
    touched = nodes.object_store_bytes()
    assert touched.pop(nodes.head_id) < 1 << 20, "payload went through the coordinator's node"
    assert min(touched.values()) > 16 << 20, "no payload went from node to node"
    assert nodes.spilled_objects() == []
    assert slow_exchanges(heard) == [], "as it was asked to"


@pytest.mark.exhaustive
def test_nodes_that_are_not_reached_are_reported_once_each(nodes: Nodes, tmp_path: Path) -> None:
    _, heard = dealt_out(tmp_path, 6, settings=Settings(exchange_network="203.0.113.0/24"))
    said = slow_exchanges(heard)
    told = [node for text in said for node in nodes.ids if node in text]
    assert len(told) == len(said) == len(set(told)) > 0
    assert all("it has no address in 203.0.113.0/24" in text for text in said)


# --- nodes --------------------------------------------------------------------------------------


@pytest.fixture
def stop() -> Iterator[StopFlag]:
    with StopFlag() as flag:
        yield flag


@pytest.fixture
def begin(nodes: Nodes, stop: StopFlag) -> Iterator[Callable[..., Runtime]]:
    from tests.support.internals import RayRuntime

    begun = []

    def begin(**needs: Any) -> Runtime:
        begun.append(RayRuntime(None, None, stop, **needs))
        return begun[-1]

    yield begin
    for runtime in begun:
        runtime.close()


@pytest.fixture
def work(tmp_path: Path) -> Work:
    return make_work(tmp_path)


def all_begun(runtime: Runtime, work: Work) -> dict[str, int]:
    """Have every worker do a task at the same time; the number of the one in each node."""
    marks = "abc"
    tasks = [work.blocked(*each) for each in zip(work.tasks(NODES), marks, strict=True)]
    releasing = threading.Thread(target=release, args=(work, *marks))
    releasing.start()
    answers = list(runtime.run(tasks))
    releasing.join()
    for path in work.directory.glob("re*ed?"):
        path.unlink()
    assert done_shards(answers) == [0, 1, 2]
    return {done.node: done.worker for _, done in answers if isinstance(done, ShardExtracted)}


@pytest.mark.exhaustive
def test_workers_go_where_labels_and_resources_say(
    begin: Callable[..., Runtime], work: Work, nodes: Nodes
) -> None:
    assert begin(labels={"zone": "in(a, c)"}).nodes() == 2
    assert begin(labels={"zone": "!a"}, resources={"slots": 2}).workers_max() == 2
    assert begin(resources={"slots": 3}).workers_max() == 1, "one node may come that has them"
    chosen = begin(labels={"zone": "b"}, resources={"slots": 1})
    chosen.start(work.setup, 1)
    (node,) = chosen.scratch_nodes()
    assert nodes.id_in("b") in node
    assert done_shards(list(chosen.run(work.tasks()))) == list(range(SHARDS))


def test_what_is_no_label_or_resource_is_refused(begin: Callable[..., Runtime], work: Work) -> None:
    with raises(SpecError, "--ray-labels", "`a b`"):
        begin(labels={"zone": "a b"}).start(work.setup, 1)
    with raises(SpecError, "--ray-resources: 'slots': 0"):
        begin(resources={"slots": 0})


def test_a_node_where_there_can_be_no_scratch_is_named(
    begin: Callable[..., Runtime], work: Work, nodes: Nodes
) -> None:
    scratch, node_id = Path(work.setup.scratch), nodes.id_in("b")
    scratch.mkdir()
    (scratch / node_id).touch()
    with raises(StorageAccessError, node_id):
        begin(labels={"zone": "b"}).start(work.setup, 1)


@pytest.fixture(scope="module")
def lasting_work(tmp_path_factory: pytest.TempPathFactory) -> Work:
    return make_work(tmp_path_factory.mktemp("nodes"))


@pytest.fixture(scope="module")
def lasting_runtime(shared: Nodes, lasting_work: Work) -> Iterator[Runtime]:
    from tests.support.internals import RayRuntime

    shared.heal()
    with StopFlag() as stop:
        runtime = RayRuntime(None, None, stop)
        runtime.start(lasting_work.setup, NODES)
        yield runtime
        runtime.close()


def spilled(scratch: Path, node: str) -> tuple[SpillBlock, bytes]:
    """A block in the scratch of a node, as a worker of it could have spilled."""
    data = os.urandom(4 << 20)
    with Scratch(scratch / node.partition("@")[2]) as opened:
        writer = SpillWriter(opened, 999, 1, to_disk=False)
        writer.append(0, [data], len(data))
        writer.close()
    return SpillBlock(0, (999,), (0,), (len(data),)), data


def exchange_of(node: str) -> RayExchange:
    """What a worker of another node has, in this process."""
    import ray

    from tests.support.internals import BlockRules, RayExchange

    slot = node.partition("@")[2]
    (name,) = [
        actor["name"]
        for actor in ray.util.list_named_actors(all_namespaces=True)
        if actor["name"].endswith(f"-{slot}")
    ]
    prefix = name.removeprefix("dsort-").removesuffix(f"-{slot}")
    return RayExchange(prefix, BlockRules(KEY, BlockPlace()))


def bytes_of(payload: Payload) -> bytes:
    return b"".join(piece.tobytes() for piece in payload)


class TestOneRuntime:
    """Tests for which one runtime is enough. They come last, for the runtime holds all CPUs; and
    last of them what loses an agent or a node."""

    @pytest.fixture
    def work(self, lasting_work: Work) -> Work:
        return lasting_work

    @pytest.fixture
    def runtime(self, lasting_runtime: Runtime) -> Runtime:
        return lasting_runtime

    def test_every_node_has_scratch_and_a_shared_file_is_in_all_of_it(
        self, runtime: Runtime, work: Work, shared: Nodes
    ) -> None:
        assert (runtime.nodes(), runtime.workers_max()) == (NODES, NODES)
        runtime.share("shared", b"data")
        nodes = runtime.scratch_nodes()
        assert len(set(nodes)) == NODES
        assert [runtime.ask(node, FileBytes("shared")) for node in nodes] == [b"data"] * NODES
        directories = {path.name for path in Path(work.setup.scratch).iterdir()}
        assert directories == set(shared.ids)

    def test_a_task_goes_to_the_scratch_node_that_has_its_files(
        self, runtime: Runtime, work: Work
    ) -> None:
        nodes = sorted(all_begun(runtime, work))
        assert nodes == sorted(runtime.scratch_nodes())
        found = [runtime.ask(node, Indexed("index", np.arange(SHARDS))) for node in nodes]
        assert [int(each.sum()) for each in found] == [1] * NODES, "each has what was done there"
        for shift in range(NODES):
            wanted = [*nodes[shift:], *nodes[:shift]]
            tasks = [
                LocatedTask(**{name: getattr(task, name) for name in task.__slots__}, node=node)
                for task, node in zip(work.tasks(NODES), wanted, strict=True)
            ]
            for task, done in runtime.run(tasks):
                assert isinstance(task, LocatedTask)
                assert isinstance(done, ShardExtracted)
                assert done.node == task.node

    def test_errors_say_where_they_happened(
        self, runtime: Runtime, work: Work, shared: Nodes
    ) -> None:
        (task,) = work.tasks(1)
        with raises(InvariantError) as caught:
            list(runtime.run([work.trapped(task, "number")]))
        assert any(node_id in str(caught.value) for node_id in shared.ids)
        node = runtime.scratch_nodes()[0]
        with pytest.raises(StorageError, match=node.partition("@")[2]):
            runtime.ask(node, FileBytes("missing"))

    @pytest.mark.exhaustive
    def test_an_agent_that_dies_is_started_again_on_its_scratch(
        self, runtime: Runtime, work: Work
    ) -> None:
        runtime.share("shared", b"data")
        nodes = runtime.scratch_nodes()
        below = psutil.Process().children(recursive=True)
        agents = [process for process in below if "DsortAgent" in process.name()]
        assert len(agents) == NODES
        for agent in agents:
            agent.kill()
        assert [runtime.ask(node, FileBytes("shared")) for node in nodes] == [b"data"] * NODES
        assert runtime.scratch_nodes() == nodes

    @pytest.mark.exhaustive
    def test_an_agent_that_dies_in_the_midst_of_a_block_is_asked_again(
        self, runtime: Runtime, cluster: SharedCluster, work: Work
    ) -> None:
        node = runtime.scratch_nodes()[0]
        block, data = spilled(Path(work.setup.scratch), node)
        cluster.arm(PointFault("block:read", 3))
        exchange = exchange_of(node)
        found = [bytes_of(exchange.begin(node, block)()) for _ in range(2)]
        assert exchange.unreachable() == ()
        assert struck(cluster.points) == ["block:read"]
        assert found == [data, data]
        assert exchange._locations[node], "the new agent is asked"

    def test_a_node_that_is_not_reached_is_reported_once_and_read_by_ray(
        self, runtime: Runtime, work: Work, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        node = runtime.scratch_nodes()[0]
        block, data = spilled(Path(work.setup.scratch), node)
        exchange = exchange_of(node)
        assert bytes_of(exchange.begin(node, block)()) == data
        exchange._locations.clear()
        monkeypatch.setattr(exchange, "_ask_location", lambda scratch_node: "tcp://127.0.0.1:1")
        found = [bytes_of(exchange.begin(node, block)()) for _ in range(3)]
        assert found == [data] * 3
        ((told, reason),) = exchange.unreachable()
        assert told == node
        assert "tcp://127.0.0.1:1" in reason
        assert exchange.unreachable() == ()

    @pytest.mark.exhaustive
    def test_a_node_lost_while_idle_is_noticed_and_a_new_one_gets_all_that_was_shared(
        self, runtime: Runtime, work: Work, shared: Nodes
    ) -> None:
        runtime.share("shared", b"data")
        before = all_begun(runtime, work)
        lost_id = shared.ids[0]
        (lost,) = [node for node in before if lost_id in node]
        left = before.keys() - {lost}
        exchange = exchange_of(lost)
        block, data = spilled(Path(work.setup.scratch), lost)
        assert bytes_of(exchange.begin(lost, block)()) == data
        shared.lose(lost_id, Path(work.setup.scratch))
        with pytest.raises(ScratchLostError, match=lost_id):
            exchange.begin(lost, block)()
        assert exchange.unreachable() == ()
        with pytest.raises(ScratchLostError, match=lost_id) as caught:
            runtime.ask(lost, FileBytes("shared"))
        assert caught.value.node == lost
        assert set(runtime.scratch_nodes()) == left
        runtime.tell(lost, FileBytes("shared"))
        runtime.share("later", b"more")
        shared.heal()
        after = all_begun(runtime, work)
        (new,) = after.keys() - before
        assert after[new] > max(before.values()), "a dead worker's number is given to no other"
        assert set(runtime.scratch_nodes()) == {*left, new}
        assert runtime.ask(new, FileBytes("shared")) == b"data"
        assert runtime.ask(new, FileBytes("later")) == b"more"
