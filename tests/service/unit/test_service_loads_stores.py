"""The process that forks for each shard loads the library of a store once for all its children."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec import to_builtins

from dsort.service.objects.shard_main import ORDER_FILE
from dsort.settings import Settings

PROGRAM = """
import sys
from dsort.service.objects.shard_main import main

def look(directory, order):
    (directory / "loaded").write_text(str("boto3" in sys.modules))

main({"look": look})
"""


@dataclass
class Forking:
    """The process, and a directory for its orders."""

    control: socket.socket
    place: Path

    def is_s3_loaded_for(self, order: object) -> bool:
        directory = self.place / str(len([*self.place.iterdir()]))
        directory.mkdir()
        (directory / ORDER_FILE).write_text(json.dumps(order))
        answer, inside = os.pipe()
        socket.send_fds(self.control, [os.fsencode(directory)], [inside])
        os.close(inside)
        with open(answer, "rb") as said:
            said.read()
        return (directory / "loaded").read_text() == "True"


@pytest.fixture
def forking(tmp_path: Path) -> Iterator[Forking]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=theirs.fileno()) as process:
        theirs.close()
        yield Forking(ours, tmp_path)
        ours.close()
        process.wait()


def order_for(bucket: str) -> dict[str, object]:
    return {"look": "look", "bucket": bucket, "settings": to_builtins(Settings())}


def test_a_look_at_s3_begins_with_its_library_and_one_at_a_directory_does_not(
    forking: Forking,
) -> None:
    assert not forking.is_s3_loaded_for(order_for("images"))
    assert not forking.is_s3_loaded_for({"look": "look", "bucket": "s3:/wrong"})
    assert forking.is_s3_loaded_for(order_for("s3://bucket"))
