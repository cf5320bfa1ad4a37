"""Two network namespaces, and a link between them that is slow, far and lossy. Needs root.

The link is a process between two TUN devices, because not every kernel has ``tc netem``. It passes
on each packet when its time has come, and drops some. Packets have 9,000 bytes, because the process
is written in Python: a gigabit a second is 14,000 packets.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import random
import secrets
import select
import shutil
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

PACKET_BYTES = 9000
QUEUE_S_MAX = 0.05
"""A packet that would have to wait longer is dropped, as by a switch."""
CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
SEED = 20260201


class LinkError(Exception):
    """This machine does not allow such a link; the message has the reason."""


@dataclass(frozen=True)
class End:
    """One end of a link."""

    namespace: str
    address: str

    def enter(self) -> None:
        """Move this process, and all processes that it starts from now on, into the namespace."""
        _enter(self.namespace)


@dataclass(frozen=True)
class Link:
    """``process``: the id of the process that passes packets on."""

    near: End
    far: End
    process: int


@contextmanager
def shaped_links(*, rate_mbit: float = 0, delay_ms: float = 0, loss: float = 0.0) -> Iterator[Link]:
    """A link of ``rate_mbit`` in each direction (0: as fast as it goes), ``delay_ms`` one way, that
    loses ``loss`` of its packets. ``LinkError`` if the machine does not allow it."""
    if os.geteuid() or shutil.which("ip") is None or not Path("/dev/net/tun").exists():
        raise LinkError("it takes root, the command ip and /dev/net/tun")
    token = secrets.token_hex(3)
    ends = [End(f"dsort-{token}-{n}", f"10.213.0.{n}") for n in (1, 2)]
    with ExitStack() as made:
        for end in ends:
            _run("ip", "netns", "add", end.namespace)
            made.callback(_run, "ip", "netns", "delete", end.namespace)
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(
            target=_hand_on, args=(ends, rate_mbit, delay_ms / 1000, loss, theirs), daemon=True
        )
        process.start()
        made.callback(process.join)
        made.callback(process.kill)
        if not ours.poll(30) or (said := ours.recv()) != "ready":
            raise LinkError(f"there are no TUN devices: {said}")
        for end in ends:
            device = ("ip", "-n", end.namespace)
            _run(*device, "link", "set", "lo", "up")
            _run(*device, "address", "add", f"{end.address}/24", "dev", "tun0")
            _run(*device, "link", "set", "tun0", "mtu", str(PACKET_BYTES), "up")
            _run(*device, "link", "set", "tun0", "txqueuelen", "1000")
        near, far = ends
        yield Link(near, far, process.pid or 0)


def _run(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        raise LinkError(f"{' '.join(command)}: {error.stderr.strip()}") from None


def _enter(namespace: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{namespace}", "rb") as file:
        if libc.setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter namespace {namespace}")


def _hand_on(ends: list[End], rate_mbit: float, delay_s: float, loss: float, pipe: Any) -> None:
    """The link, until this process is killed."""
    try:
        devices = [_device(end) for end in ends]
    except OSError as error:
        pipe.send(str(error))
        return
    pipe.send("ready")
    lots = random.Random(SEED)
    free_s = [0.0, 0.0]  # when each direction has sent all of its packets
    waiting: list[tuple[float, int, int, bytes]] = []
    count = 0
    while True:
        wait_s = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for device in select.select(devices, [], [], wait_s)[0]:
            side = devices.index(device)
            for packet in _packets(device):
                now_s = time.monotonic()
                sent_s = max(now_s, free_s[side])
                if lots.random() < loss or sent_s - now_s > QUEUE_S_MAX:
                    continue
                free_s[side] = sent_s + (len(packet) / (rate_mbit * 125_000) if rate_mbit else 0)
                count += 1
                heapq.heappush(waiting, (free_s[side] + delay_s, count, 1 - side, packet))
        now_s = time.monotonic()
        while waiting and waiting[0][0] <= now_s:
            _, _, side, packet = heapq.heappop(waiting)
            try:
                os.write(devices[side], packet)
            except OSError:  # the device is down, or full
                continue


def _device(end: End) -> int:
    """A TUN device in the namespace of ``end``, without blocking."""
    _enter(end.namespace)
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH14x", b"tun0", IFF_TUN | IFF_NO_PI))
    return device


def _packets(device: int) -> Iterator[bytes]:
    for _ in range(64):
        try:
            yield os.read(device, PACKET_BYTES + 100)
        except BlockingIOError:
            return
        except OSError:
            return
