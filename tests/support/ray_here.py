"""A Ray on this machine that several tests share, since it takes seconds to start."""

from __future__ import annotations

import logging
import shutil
import signal
import tempfile
from collections.abc import Iterator
from typing import Any

__all__ = ["ray_here"]


def ray_here() -> Iterator[Any]:
    """The body of a fixture: the module ``ray``, connected to a Ray of four CPUs."""
    import ray

    directory = tempfile.mkdtemp(prefix="dsort-test-")  # a short path: Ray puts sockets there
    handler = signal.getsignal(signal.SIGTERM)  # Ray takes it over
    try:
        ray.init(
            address="local",
            num_cpus=4,
            num_gpus=0,
            include_dashboard=False,
            object_store_memory=80 << 20,
            log_to_driver=False,
            logging_level=logging.CRITICAL,
            _temp_dir=directory,
        )
        yield ray
    finally:
        ray.shutdown()
        signal.signal(signal.SIGTERM, handler)
        shutil.rmtree(directory, ignore_errors=True)
