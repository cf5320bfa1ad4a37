"""Ceph's S3 gateway as a server for benchmarks: Debian's ``radosgw``, with a monitor and one OSD
that keeps all data in memory.

    apt-get install --no-install-recommends ceph-mon ceph-osd radosgw ceph-common

It hashes less than SeaweedFS does, so that what clients cost is a larger share. All processes
listen on 127.0.0.1 alone, without authentication among themselves, and end with the block.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from shutil import which

import botocore.exceptions

from benchmarks.seaweedfs import S3Server

__all__ = ["missing_radosgw", "radosgw"]

PROGRAMS = ("ceph", "ceph-mon", "ceph-osd", "monmaptool", "radosgw", "radosgw-admin")
DATA_BYTES_MAX = 8 << 30
COMMAND_SECONDS_MAX = 60
START_SECONDS_MAX = 60
POLL_SECONDS = 0.2

_SETTINGS = """[global]
fsid = {fsid}
mon_host = v1:127.0.0.1:{monitor_port}
mon_initial_members = a
public_network = 127.0.0.0/8
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
ms_mon_client_mode = crc
ms_bind_msgr2 = false
osd_pool_default_size = 1
osd_pool_default_min_size = 1
mon_allow_pool_size_one = true
osd_pool_default_pg_num = 8
osd_pool_default_pgp_num = 8
osd_crush_chooseleaf_type = 0
mon_data = {directory}/mon
osd_data = {directory}/osd
osd_objectstore = memstore
memstore_device_bytes = {data_bytes_max}
run_dir = {directory}
admin_socket =
pid_file =
log_file = {directory}/$name.log
# A second for each change of a map, else.
paxos_propose_interval = 0.05
paxos_min_wait = 0.01
osd_max_object_name_len = 256
osd_max_object_namespace_len = 64
[client.rgw]
rgw_data = {directory}/rgw
# Objects that were removed stay for two hours, else: three rounds of 1.1 GB fill the memory.
rgw_gc_obj_min_wait = 1
rgw_gc_processor_period = 2
rgw_gc_processor_max_time = 2
# Without tcp_nodelay each small GET takes 44 ms.
rgw_frontends = beast endpoint=127.0.0.1:{port} tcp_nodelay=1
"""


def missing_radosgw() -> str:
    """Why there can be no radosgw here; empty when there can."""
    lost = [program for program in PROGRAMS if which(program) is None]
    return f"not installed: {', '.join(lost)} (Debian's radosgw and ceph)" if lost else ""


@contextmanager
def radosgw(directory: Path) -> Iterator[S3Server]:
    """Run a gateway whose files are in ``directory``, empty before, until the end of the block."""
    for part in ("mon", "osd", "rgw"):
        (directory / part).mkdir(parents=True)
    monitor_port, port = _free_ports()
    fsid, access_key, secret_key = str(uuid.uuid4()), secrets.token_hex(8), secrets.token_hex(16)
    settings = directory / "ceph.conf"
    settings.write_text(
        _SETTINGS.format(
            fsid=fsid,
            monitor_port=monitor_port,
            port=port,
            directory=directory,
            data_bytes_max=DATA_BYTES_MAX,
        )
    )
    here = ["-c", str(settings)]
    # As root they would become the user `ceph`, whose directory this is not.
    root = ["--setuser", "root", "--setgroup", "root"] if os.getuid() == 0 else []
    addresses = f"[v1:127.0.0.1:{monitor_port}]"
    monitors, osd = str(directory / "monmap"), str(uuid.uuid4())
    log = directory / "server.log"
    with ExitStack() as stack:
        _run("monmaptool", "--create", "--fsid", fsid, "--addv", "a", addresses, monitors)
        _run("ceph-mon", *here, "--mkfs", "-i", "a", "--monmap", monitors, *root)
        pids = [_begin(stack, log, "ceph-mon", *here, "-i", "a", "-f", *root)]
        _run("ceph", *here, "osd", "new", osd)
        _run("ceph-osd", *here, "-i", "0", "--mkfs", "--osd-uuid", osd, *root)
        pids.append(_begin(stack, log, "ceph-osd", *here, "-i", "0", "-f", *root))
        _run("radosgw-admin", *here, "user", "create", "--uid=dsort", "--display-name=dsort",
             f"--access-key={access_key}", f"--secret-key={secret_key}")  # fmt: skip
        pid = _begin(stack, log, "radosgw", *here, "-n", "client.rgw", "-f", *root)
        url = f"http://127.0.0.1:{port}"
        server = S3Server(url, access_key, secret_key, "", "", pid, log, other_pids=tuple(pids))
        _wait_until_ready(server)
        yield server


def _run(*command: str) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=COMMAND_SECONDS_MAX, check=False
    )
    if done.returncode:
        said = " ".join(done.stderr.strip().splitlines()[-3:])
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {said}")


def _begin(stack: ExitStack, log: Path, *command: str) -> int:
    """Start a process that ends with ``stack``; its number."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C of the benchmark is not for it
        )
    stack.callback(_end, process)
    return process.pid


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)  # nobody needs its data
    process.wait()


def _wait_until_ready(server: S3Server) -> None:
    client, ends_s = server.client(), time.monotonic() + START_SECONDS_MAX
    while True:
        try:
            client.list_buckets()
            return
        except (botocore.exceptions.ClientError, botocore.exceptions.BotoCoreError) as error:
            if time.monotonic() > ends_s:
                raise RuntimeError(
                    f"radosgw did not get ready ({error}); its log ends:\n"
                    + server.log.read_text(errors="replace")[-4000:]
                ) from None
        time.sleep(POLL_SECONDS)


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        for each in (one, other):
            each.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]
