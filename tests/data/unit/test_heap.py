"""A worker's heap is kept between tasks of a phase, and given back behind it."""

from __future__ import annotations

import json
import platform
import subprocess
import sys

import pytest

ARRAYS = """
import json, resource, sys
from pathlib import Path
import numpy as np
from dsort.workers.worker import Heap

def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

def faults_of(rounds):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(rounds):
        np.ones(3 << 17)  # 3 MiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

heap = Heap(int(sys.argv[1]))
heap.enter("extract")
faults_of(1)
again = faults_of(10)
kept = resident_bytes()
heap.enter("create")
print(json.dumps({"faults": again, "given_back_bytes": kept - resident_bytes()}))
"""


def figures_of(buffer_bytes: int) -> dict[str, int]:
    line = [sys.executable, "-c", ARRAYS, str(buffer_bytes)]
    found: dict[str, int] = json.loads(subprocess.run(line, capture_output=True, check=True).stdout)
    return found


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no settings")
def test_arrays_of_one_phase_reuse_memory_and_the_next_phase_begins_without_it() -> None:
    found = figures_of(64 << 20)
    assert found["faults"] < 100
    assert found["given_back_bytes"] > 2 << 20


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no settings")
def test_a_worker_with_little_memory_keeps_little() -> None:
    assert figures_of(2 << 20)["faults"] > 1000
