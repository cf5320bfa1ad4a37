"""What it costs to have spill of another node: blocks of 16 MiB straight from its agent and by
Ray's object store, taking turns, and by a bare socket as the floor.

    python -m benchmarks.exchange                     # all, over loopback
    python -m benchmarks.exchange --skip-ray          # without a Ray (it takes seconds to start)
    python -m benchmarks.exchange --shaped            # and between network namespaces (root)

Both ends are processes of their own, and their CPU seconds are counted, with those of Ray's servers
for Ray. Blocks end in a buffer of the worker. Memory is the most that a process had resident, its
interpreter and libraries included.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.memory import own_bytes
from benchmarks.shaped_links import Link, LinkError, shaped_links
from dsort.runtime.ray.block_server import BlockPlace, BlockServer
from dsort.runtime.ray.block_stream import BlockKey
from dsort.runtime.ray.exchange import BlockClient
from dsort.scratch.directory import Scratch
from dsort.scratch.spill import BLOCK_BYTES, BLOCKS_IN_FLIGHT_MAX, SpillBlock, read_spill
from dsort.workers.worker import Heap

__all__ = ["main"]

NODE, WORKER, PARTITION = "token@node", 0, 0
FILE_BYTES = 256 << 20
GIB = 1 << 30
SLOW_LINK_BYTES = 512 << 20
END_S_MAX = 30

Measured = dict[str, float]


def main() -> None:
    """Measure, print a table, and one JSON object on the last line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--total", type=float, default=2.0, help="GiB in each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--skip-ray", action="store_true")
    parser.add_argument("--shaped", action="store_true", help="and over links with delay and loss")
    parser.add_argument("--data", type=Path, default=None, help="where the spill file is made")
    arguments = parser.parse_args()
    found: dict[str, list[Measured]] = {}
    directory = Path(tempfile.mkdtemp(prefix="dsort-exchange-", dir=arguments.data))
    total_bytes = int(arguments.total * GIB) // BLOCK_BYTES * BLOCK_BYTES
    try:
        scratch = _spilled(directory)
        ways: dict[str, Callable[[], Measured]] = {
            "socket": lambda: _between(_serve_socket, _take_socket, scratch, total_bytes),
            "direct": lambda: _between(_serve_blocks, _take_blocks, scratch, total_bytes),
        }
        if not arguments.skip_ray:
            ways["ray"] = lambda: _by_ray(scratch, total_bytes)
        for _ in range(arguments.rounds):
            for name, measure in ways.items():
                found.setdefault(name, []).append(measure())
                _print(name, found[name][-1])
        if arguments.shaped:
            _shaped(scratch, found)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    medians = {
        name: {key: statistics.median(each[key] for each in runs) for key in runs[0]}
        for name, runs in found.items()
    }
    for name, each in medians.items():
        _print(f"{name} (median)", each)
    print(json.dumps({"rounds": found, "medians": medians}))


def _print(name: str, found: Measured) -> None:
    print(
        f"{name:28} {found['mb_per_s']:7.0f} MB/s  {found['cpu_s_per_gib']:.2f} CPU s/GiB "
        f"({found['serve_s_per_gib']:.2f} serving, {found['take_s_per_gib']:.2f} taking)  "
        f"{found['serve_mib']:.0f} + {found['take_mib']:.0f} MiB",
        file=sys.stderr,
        flush=True,
    )


def _spilled(directory: Path) -> Path:
    """The scratch directory of a node with one spill file."""
    path = directory / "scratch"
    name = f"spill-{WORKER}-{PARTITION}"
    with (
        Scratch(path, make=True) as scratch,
        open(scratch.open_to_write(name, os.O_WRONLY), "wb") as file,
    ):
        for _ in range(FILE_BYTES >> 20):
            file.write(os.urandom(1 << 20))
    return path


def _blocks(total_bytes: int) -> Iterator[SpillBlock]:
    for at in range(0, total_bytes, BLOCK_BYTES):
        yield SpillBlock(PARTITION, (WORKER,), (at % FILE_BYTES,), (BLOCK_BYTES,))


# --- two processes ------------------------------------------------------------------------------


def _between(
    serve: Callable[..., None],
    take: Callable[..., None],
    scratch: Path,
    total_bytes: int,
    link: Link | None = None,
) -> Measured:
    """``serve`` and ``take`` in processes of their own, at the two ends of ``link``."""
    context, key = get_context("spawn"), BlockKey.new()
    (ours, theirs), (other, taking) = context.Pipe(), context.Pipe()
    ends = [
        context.Process(target=_end, args=(serve, link and link.near, scratch, key, theirs)),
        context.Process(
            target=_end, args=(take, link and link.far, scratch, key, taking, total_bytes)
        ),
    ]
    for end in ends:
        end.start()
    try:
        where = ours.recv()
        other.send(where)
        assert other.recv() == "ready"
        ours.send("go")
        other.send("go")
        seconds, taken_s, take_bytes = other.recv()
        ours.send("end")
        served_s, serve_bytes = ours.recv()
    finally:
        for end in ends:
            end.join(END_S_MAX)
            end.kill()
    return _measured(total_bytes, seconds, served_s, taken_s, serve_bytes, take_bytes)


def _measured(
    total_bytes: int,
    seconds: float,
    served_s: float,
    taken_s: float,
    serve_bytes: float,
    take_bytes: float,
) -> Measured:
    gib = total_bytes / GIB
    return {
        "mb_per_s": total_bytes / 1e6 / seconds,
        "cpu_s_per_gib": (served_s + taken_s) / gib,
        "serve_s_per_gib": served_s / gib,
        "take_s_per_gib": taken_s / gib,
        "serve_mib": serve_bytes / (1 << 20),
        "take_mib": take_bytes / (1 << 20),
    }


def _end(do: Callable[..., None], end: Any, *arguments: Any) -> None:
    if end is not None:
        end.enter()
    do(end.address if end is not None else "127.0.0.1", *arguments)


def _cpu_s() -> float:
    used = psutil.Process().cpu_times()
    return used.user + used.system


def _serve_blocks(address: str, scratch: Path, key: BlockKey, pipe: Any) -> None:
    server = BlockServer(Scratch(scratch), NODE, key, BlockPlace(), address)
    pipe.send(server.location)
    pipe.recv()
    before_s = _cpu_s()
    pipe.recv()
    pipe.send((_cpu_s() - before_s, own_bytes("VmHWM")))


def _take_blocks(address: str, scratch: Path, key: BlockKey, pipe: Any, total_bytes: int) -> None:
    client, location = BlockClient(key), pipe.recv()
    Heap(256 << 20)
    buffer = np.ones(BLOCK_BYTES, np.uint8)

    def take(blocks: Iterator[SpillBlock]) -> None:
        coming = []
        for block in blocks:
            coming.append(client.begin(location, NODE, block))
            if len(coming) == BLOCKS_IN_FLIGHT_MAX:
                _put(coming.pop(0).result(), buffer)
        for each in coming:
            _put(each.result(), buffer)

    take(_blocks(BLOCK_BYTES))
    pipe.send("ready")
    pipe.recv()
    before_s, began = _cpu_s(), time.perf_counter()
    take(_blocks(total_bytes))
    pipe.send((time.perf_counter() - began, _cpu_s() - before_s, own_bytes("VmHWM")))
    client.close()


def _put(pieces: Any, buffer: Any) -> None:
    at = 0
    for piece in pieces:
        buffer.data[at : at + len(piece)] = piece.data
        at += len(piece)
    assert at == BLOCK_BYTES


def _serve_socket(address: str, scratch: Path, key: BlockKey, pipe: Any) -> None:
    import socket

    with socket.create_server((address, 0)) as listening:
        pipe.send(listening.getsockname()[:2])
        taken, _ = listening.accept()
        pipe.recv()
        before_s = _cpu_s()
        file = Scratch(scratch).open_to_read(f"spill-{WORKER}-{PARTITION}")
        while asked := taken.recv(8, socket.MSG_WAITALL):
            at, left = int.from_bytes(asked, "little"), BLOCK_BYTES
            while left:
                sent = os.sendfile(taken.fileno(), file, at, left)
                at, left = at + sent, left - sent
        pipe.recv()
        pipe.send((_cpu_s() - before_s, own_bytes("VmHWM")))


def _take_socket(address: str, scratch: Path, key: BlockKey, pipe: Any, total_bytes: int) -> None:
    import socket

    buffer = np.ones(BLOCK_BYTES, np.uint8)
    with socket.create_connection(pipe.recv()) as server:
        pipe.send("ready")
        pipe.recv()
        before_s, began = _cpu_s(), time.perf_counter()
        for block in _blocks(total_bytes):
            server.sendall(block.starts[0].to_bytes(8, "little"))
            left = buffer.data
            while left:
                left = left[server.recv_into(left) :]
        pipe.send((time.perf_counter() - began, _cpu_s() - before_s, own_bytes("VmHWM")))


# --- Ray ----------------------------------------------------------------------------------------


def _by_ray(scratch: Path, total_bytes: int) -> Measured:
    """Blocks as an agent answers them and a worker takes them, on two nodes of this machine. CPU of
    all of Ray's processes counts, as they do nothing else."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    for name in ("near", "far"):
        cluster.add_node(num_cpus=1, resources={name: 1}, object_store_memory=256 << 20)
    try:
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")

        class Agent:
            def answer(self, block: SpillBlock) -> Any:
                whole = np.empty(BLOCK_BYTES, np.uint8)
                with Scratch(scratch) as opened:
                    read_spill(opened, WORKER, PARTITION, block.starts[0], whole.data)
                return whole

        class Taker:
            def take(self, agent: Any, blocks: list[SpillBlock]) -> float:
                buffer, coming = np.ones(BLOCK_BYTES, np.uint8), []
                began = time.perf_counter()
                for block in blocks:
                    coming.append(agent.answer.remote(block))
                    if len(coming) == BLOCKS_IN_FLIGHT_MAX:
                        _put([ray.get(coming.pop(0))], buffer)
                for each in coming:
                    _put([ray.get(each)], buffer)
                return time.perf_counter() - began

        agent = ray.remote(num_cpus=0, resources={"near": 1})(Agent).remote()
        taker = ray.remote(num_cpus=0, resources={"far": 1})(Taker).remote()
        ray.get(taker.take.remote(agent, list(_blocks(2 * BLOCK_BYTES))))
        before_s = _tree_cpu_s()
        seconds = ray.get(taker.take.remote(agent, list(_blocks(total_bytes))))
        used_s = _tree_cpu_s() - before_s
    finally:
        ray.shutdown()
        cluster.shutdown()
    return _measured(total_bytes, seconds, used_s, 0.0, 0, 0)


def _tree_cpu_s() -> float:
    used_s = 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        used_s += times.user + times.system
    return used_s


# --- shaped links -------------------------------------------------------------------------------


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except LinkError as none:
        print(f"no shaped links: {none}", file=sys.stderr)


def _shaped(scratch: Path, found: dict[str, list[Measured]]) -> None:
    links = {
        "loopback of a namespace": {},
        "1 Gbit/s, 5 ms": {"rate_mbit": 1000, "delay_ms": 5.0},
        "1 Gbit/s, 5 ms, loss 0.1 %": {"rate_mbit": 1000, "delay_ms": 5.0, "loss": 0.001},
    }
    for name, shape in links.items():
        with _told(), shaped_links(**shape) as link:
            key = f"direct, {name}"
            run = _between(_serve_blocks, _take_blocks, scratch, SLOW_LINK_BYTES, link)
            found.setdefault(key, []).append(run)
            _print(key, run)


if __name__ == "__main__":
    main()
