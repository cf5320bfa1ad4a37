"""What nodes of a test's cluster leave to be done when the process ends: nothing, once the cluster
has ended."""

from __future__ import annotations

import gc
import signal
import weakref

from ray._private.node import Node

from tests.support.ray_cluster import exits_taken_back


def test_nothing_keeps_a_node_that_has_ended() -> None:
    handler = signal.getsignal(signal.SIGTERM)  # Ray takes it over
    try:
        with exits_taken_back():
            node = Node.__new__(Node)  # one without processes
            node._register_shutdown_hooks()
            is_there = weakref.ref(node)
            del node
            gc.collect()
            assert is_there()
    finally:
        signal.signal(signal.SIGTERM, handler)
    gc.collect()
    assert is_there() is None
