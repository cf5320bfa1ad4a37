"""The process that forks for each shard: ``python -m dsort.service.objects.shard_main``.

The process loads the engine once, because this takes most of the time of a look at a shard. Over a
socket, the service sends the process the directory of an order and the pipe for the answer.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from dsort.bounds import memory_max_bytes
from dsort.errors import DsortError, InvariantError, TooLargeError
from dsort.reading.dataset import BoundedIndexCache
from dsort.reading.places import ShardPlace
from dsort.reading.shard import WHOLE_BYTES, Shard
from dsort.service.objects import shard_looks
from dsort.service.objects.shard_looks import Order
from dsort.service.objects.view_looks import view_page
from dsort.service.problems import problem_of
from dsort.settings import Settings, resolve_ref
from dsort.sizes import format_bytes
from dsort.spec.buckets import parse_bucket
from dsort.spec.load import parse_spec
from dsort.storage.bucket import Bucket
from dsort.storage.network_policy import FetchPolicy
from dsort.storage.open import open_bucket
from dsort.storage.ref import BucketRef
from dsort.storage.registry import store_of
from dsort.storage.routed import BucketPlace, open_inputs

ORDER_FILE: Final = "order.json"
OUT_DIRECTORY: Final = "out"
MEMBERS_FILE: Final = "members"
"""In ``OUT_DIRECTORY``: the answer to a look."""
MESSAGE_BYTES_MAX: Final = 4096
Work = Callable[[Path, Order], None]
"""Carries out an order in its directory."""

FILE_BYTES_MAX: Final = 16 << 30
"""The most bytes of a file that an order writes: steps may make large outputs from small inputs."""
INDEXES_BYTES_MAX: Final = 256 << 20
KEPT_FROM_BYTES: Final = 1 << 20
"""The index of a smaller shard is not kept: the whole shard is read as fast as its index."""
PR_SET_PDEATHSIG: Final = 1
OOM_SCORE: Final = 500
OURS: Final = {"PYDANTIC_DISABLE_PLUGINS": "__all__", "OMP_NUM_THREADS": "1"}
"""Variables with which this process starts sooner, and has no threads, which would prevent a fork.
Users' code does not get these variables."""


def main(works: Mapping[str, Work]) -> int:
    """For each order, make a fork, which carries out the order with one of ``works``. The function
    returns when the service closes the socket, which is standard input."""
    control = socket.socket(fileno=os.dup(0))
    # Output that users' code prints must not get into the answer.
    with open(os.devnull, "r+b") as nowhere:
        for number in (0, 1):
            os.dup2(nowhere.fileno(), number)
    # When memory runs out, this process is killed before the service.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE), encoding="ascii")
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES_MAX, FILE_BYTES_MAX))
    for name in OURS:
        os.environ.pop(name, None)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no child is waited for
    ours = os.getpid()
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES_MAX, 1)
        if not descriptors:
            return 0
        (answer,) = descriptors
        directory = Path(os.fsdecode(message))
        _load_store(directory)
        if os.fork() == 0:
            control.close()
            os._exit(_done(works, directory, answer, parent=ours))
        os.close(answer)


def _load_store(directory: Path) -> None:
    """Load the libraries of the store that an order names, because otherwise every child would load
    them. The libraries of S3 take longer than most looks."""
    with contextlib.suppress(Exception):  # the child reports the error
        store = store_of(_ref_of(json.loads((directory / ORDER_FILE).read_bytes())).scheme)
        if store is not None:
            store.load()


def _done(works: Mapping[str, Work], directory: Path, answer: int, *, parent: int) -> int:
    """Carry out the order in ``directory``, in a child; returns its exit code. The child writes its
    process number into the pipe ``answer``, and at the end the problem, if there is one."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the call above took effect
        return 1
    os.write(answer, b"%d\n" % os.getpid())
    said: dict[str, Any] = {}
    try:
        order = json.loads((directory / ORDER_FILE).read_bytes())
        works[order["look"]](directory, order)
    except DsortError as error:
        said = {"problem": problem_of(error)}
    except MemoryError:
        most = format_bytes(memory_max_bytes(WHOLE_BYTES))
        text = f"to look into the shard takes more than {most} of memory"
        hint = "`dsort inspect`, `dsort cat` and `dsort.open` have all the memory of their machine"
        said = {"problem": problem_of(TooLargeError(text, hint=hint))}
    except Exception as error:  # noqa: BLE001 - the request gets the error, of any kind
        text = f"the shard cannot be worked on: {type(error).__name__}: {error}"
        said = {"problem": problem_of(InvariantError(text))}
    rest = json.dumps(said).encode() + b"\n"
    while rest:
        rest = rest[os.write(answer, rest) :]
    return 0


def limit_memory() -> None:
    """Limit the memory of this process to its present size plus the bound for a reader of
    shards."""
    found = re.search(r"^VmData:\s+(\d+) kB", Path("/proc/self/status").read_text("ascii"), re.M)
    assert found is not None
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = (int(found[1]) << 10) + memory_max_bytes(WHOLE_BYTES)
    if hard == resource.RLIM_INFINITY or most < hard:
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def bucket_of(order: Order) -> Bucket:
    """The bucket that an order names."""
    return _opened(_ref_of(order), order, order["fetch"])


def _ref_of(order: Order) -> BucketRef:
    settings = Settings.of_json(order["settings"])
    return parse_bucket(order["bucket"], ais_is_there=settings.ais_is_there)


def _opened(ref: BucketRef, order: Order, fetch: Mapping[str, Any]) -> Bucket:
    settings = Settings.of_json(order["settings"])
    ref = resolve_ref(ref, settings)
    limits, policy = settings.limits(ref), FetchPolicy.of(fetch)
    return open_bucket(ref, root=Path(order["root"]), limits=limits, policy=policy)


def _look_at_view(directory: Path, order: Order) -> None:
    limit_memory()
    sources = [
        BucketPlace(each.name, each.bucket) for each in parse_spec(order["spec"]).spec.sources
    ]
    inputs = open_inputs(sources, lambda place: _opened(place.ref, order, order["inputs_fetch"]))
    write_out(directory, view_page(bucket_of(order), inputs, order))


def write_out(directory: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Write the answer to an order that looks at a shard or a bucket."""
    with (directory / OUT_DIRECTORY / MEMBERS_FILE).open("wb") as made:
        made.writelines(pieces)


@contextlib.contextmanager
def opened_shard(order: Order) -> Iterator[Shard]:
    """The shard. The headers of the shard are read once; its index is kept until the shard
    changes."""
    bucket = bucket_of(order)
    cache = BoundedIndexCache(Path(order["indexes"]), INDEXES_BYTES_MAX)
    info = bucket.stat(order["name"])
    known = cache.find(bucket.uri, info) if info.size_bytes >= KEPT_FROM_BYTES else None
    with Shard(ShardPlace(bucket, info.name, info=info), index=known) as shard:
        yield shard
        if known is None and info.size_bytes >= KEPT_FROM_BYTES:
            index = shard.record_index
            if index is not None:
                cache.keep(bucket.uri, info, index)


def _of_bucket(look: Callable[[Bucket, Order], Iterator[bytes]]) -> Work:
    def work(directory: Path, order: Order) -> None:
        limit_memory()
        write_out(directory, look(bucket_of(order), order))

    return work


def _of_shard(look: Callable[[Shard, Order], Iterator[bytes]]) -> Work:
    def work(directory: Path, order: Order) -> None:
        limit_memory()
        with opened_shard(order) as shard:
            write_out(directory, look(shard, order))

    return work


WORKS: Final[Mapping[str, Work]] = {
    "counts": _of_bucket(shard_looks.counts),
    "garbage": _of_bucket(shard_looks.garbage),
    "payload": _of_shard(shard_looks.payload),
    "records": _of_shard(shard_looks.records),
    "shown": _of_shard(shard_looks.shown),
    "view": _look_at_view,
}
"""The work for each value of ``look`` in an order."""


if __name__ == "__main__":
    sys.exit(main(WORKS))
