"""The process of a look at a shard has a limit of memory, whatever is in the shard."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

LOOKS = """
import os, sys
from pathlib import Path
from dsort.service.objects import shard_main

def look(directory, order):
    shard_main.limit_memory()
    bytearray(order["bytes"])

reads, writes = os.pipe()
if os.fork() == 0:
    os._exit(shard_main._done({"records": look}, Path(sys.argv[1]), writes, parent=os.getppid()))
os.close(writes)
os.wait()
sys.stdout.write(os.read(reads, 1 << 16).decode().partition("\\n")[2])
"""


@pytest.mark.parametrize(("mebibytes", "status"), [(256, None), (1024, 413)])
def test_a_look_that_takes_more_memory_than_a_reader_may_is_refused(
    mebibytes: int, status: int | None, tmp_path: Path
) -> None:
    order = {"look": "records", "bytes": mebibytes << 20}
    (tmp_path / "order.json").write_text(json.dumps(order))
    command = [sys.executable, "-c", LOOKS, str(tmp_path)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    problem = json.loads(answer.stdout).get("problem", {})
    assert problem.get("status") == status, problem
