"""What a lease asks of this machine: whether a process is still the one that it was."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from msgspec.structs import replace

from tests.support.internals import LeaseRecord, Machine, decode_lease, encode_lease


def test_this_process_is_not_gone() -> None:
    machine = Machine()
    me = machine.holder()
    assert me.pid == os.getpid()
    assert me == machine.holder()
    assert not machine.is_gone(me)


def test_another_process_of_the_same_number_is_another() -> None:
    me = Machine().holder()
    assert Machine().is_gone(replace(me, pid_start=me.pid_start - 1))


def test_a_process_that_ended_is_gone_even_if_no_process_asked_for_its_end() -> None:
    machine = Machine()
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as child:
        status = Path(f"/proc/{child.pid}/stat").read_text(encoding="utf-8")
        started = int(status.rpartition(")")[2].split()[19])
        holder = replace(machine.holder(), pid=child.pid, pid_start=started)
        assert not machine.is_gone(holder)
        assert child.stdin is not None
        child.stdin.write(b"\n")
        child.stdin.close()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert machine.is_gone(holder)  # a zombie
        child.wait()
        assert machine.is_gone(holder)


def test_a_number_that_no_process_has_is_gone() -> None:
    me = Machine().holder()
    assert Machine().is_gone(replace(me, pid=2**22 + 1))


def test_a_lease_is_read_as_it_was_written() -> None:
    record = LeaseRecord(3, Machine().holder(), "5f", 1_800_000_000.25, 60.0, released=True)
    assert decode_lease(encode_lease(record)) == record
