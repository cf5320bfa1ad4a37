"""A Ray on this machine that several tests share, since it takes seconds to start."""

from __future__ import annotations

import logging
import shutil
import signal
import tempfile
from collections.abc import Iterator
from typing import Any

import psutil

from tests.support.children import children_here
from tests.support.ray_nodes import bare_nodes

END_S_MAX = 60.0


def ray_here() -> Iterator[Any]:
    """The body of a fixture: the module ``ray``, connected to a Ray of four CPUs. In the end, none
    of Ray's processes is left, not even as a zombie: other tests count their children."""
    with bare_nodes():
        yield from _ray_here()


def _ray_here() -> Iterator[Any]:
    import ray

    directory = tempfile.mkdtemp(prefix="dt-", dir="/tmp")  # a short path: Ray puts sockets there
    handler = signal.getsignal(signal.SIGTERM)  # Ray replaces the handler
    before = set(children_here())
    try:
        ray.init(
            address="local",
            num_cpus=4,
            num_gpus=2,  # for workers that ask for some; Ray does not check that they exist
            include_dashboard=False,
            object_store_memory=80 << 20,
            log_to_driver=False,
            logging_level=logging.CRITICAL,
            _temp_dir=directory,
        )
        yield ray
    finally:
        ray.shutdown()
        for each in psutil.wait_procs(set(children_here()) - before, END_S_MAX)[1]:
            each.kill()
            each.wait(END_S_MAX)
        signal.signal(signal.SIGTERM, handler)
        shutil.rmtree(directory, ignore_errors=True)
