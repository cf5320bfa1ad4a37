"""A stop flag is raised once, from anywhere, and wakes all waiters."""

from __future__ import annotations

import os
import select
import signal
import threading

import pytest

from dsort.errors import JobStoppedError
from dsort.stop_flag import StopFlag
from tests.support.refusals import raises


def readable(flag: StopFlag) -> bool:
    return bool(select.select([flag], [], [], 0)[0])


def test_a_new_flag_is_down() -> None:
    with StopFlag() as flag:
        flag.raise_if_requested()
        assert not flag.requested
        assert flag.signal_number is None
        assert not readable(flag)


def test_a_request_is_kept_with_its_signal() -> None:
    with StopFlag() as flag:
        assert flag.request(signal.SIGTERM)
        with pytest.raises(JobStoppedError, match="SIGTERM") as caught:
            flag.raise_if_requested()
        assert caught.value.signal_number == signal.SIGTERM
        assert readable(flag)


def test_the_first_request_counts() -> None:
    with StopFlag() as flag:
        flag.request(signal.SIGTERM)
        assert not flag.request(signal.SIGINT)
        assert flag.signal_number == signal.SIGTERM


def test_a_request_from_another_thread_wakes_a_selector() -> None:
    with StopFlag() as flag:
        thread = threading.Thread(target=flag.request, args=(signal.SIGINT,))
        thread.start()
        ready, _, _ = select.select([flag], [], [], 60)
        thread.join()
        assert ready == [flag]


def test_a_request_from_a_signal_handler_is_seen() -> None:
    with StopFlag() as flag:
        previous = signal.signal(signal.SIGUSR1, lambda number, frame: flag.request(number))
        try:
            os.kill(os.getpid(), signal.SIGUSR1)
            assert select.select([flag], [], [], 60)[0] == [flag]
        finally:
            signal.signal(signal.SIGUSR1, previous)
        assert flag.signal_number == signal.SIGUSR1


def test_a_closed_flag_holds_no_descriptor_and_can_still_be_raised() -> None:
    flag = StopFlag()
    descriptor = flag.fileno()
    flag.close()
    flag.close()
    with raises(OSError, errno=9):
        os.fstat(descriptor)
    flag.request(signal.SIGINT)
    assert flag.requested
