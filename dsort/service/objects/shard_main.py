"""The process that forks for each shard: ``python -m dsort.service.objects.shard_main``.

A shard is transformed, or inspected: its files are listed, or one of them is read. The process has
the engine loaded, which takes most of the time of a small job. The service sends it, over a socket,
the directory of an order and the pipe for the answer. A child process carries out the order: it
writes its process number into the pipe, and at the end the problem, if there is one. All end with
the service.
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
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from dsort import api
from dsort.bounds import memory_max_bytes
from dsort.errors import DsortError, InvariantError, NotFoundError, TooLargeError
from dsort.options import RunOptions
from dsort.reading.dataset import IndexCache
from dsort.reading.places import ShardPlace
from dsort.reading.shard import WHOLE_BYTES, Shard
from dsort.service.objects import shard_looks
from dsort.service.problems import problem_of
from dsort.settings import Settings, resolve_ref
from dsort.shard_contents import ShardContents, open_contents
from dsort.sizes import format_bytes
from dsort.spec.buckets import parse_bucket
from dsort.spec.load import parse_spec
from dsort.storage.bucket import Bucket
from dsort.storage.network_policy import FetchPolicy
from dsort.storage.open import open_bucket

__all__ = [
    "MEMBERS_FILE",
    "MESSAGE_BYTES_MAX",
    "ORDER_FILE",
    "OURS",
    "OUT_DIRECTORY",
    "look",
    "main",
]

ORDER_FILE: Final = "order.json"
OUT_DIRECTORY: Final = "out"
MEMBERS_FILE: Final = "members"
"""In ``OUT_DIRECTORY``: a line of JSON for each file in a shard, or the bytes of one file."""
MESSAGE_BYTES_MAX: Final = 4096

MEMBERS_MAX: Final = 200_000
MEMBER_BYTES_MAX: Final = 4 << 30
FILE_BYTES_MAX: Final = 16 << 30
"""Of any file that the job writes: steps may make large outputs from small inputs."""
MEMORY_BYTES_MAX: Final = 512 << 20
INDEXES_BYTES_MAX: Final = 256 << 20
KEPT_FROM_BYTES: Final = 1 << 20
"""The index of a smaller shard is not kept: the whole shard is read as fast as its index."""
PR_SET_PDEATHSIG: Final = 1
OOM_SCORE: Final = 500
OURS: Final = {"PYDANTIC_DISABLE_PLUGINS": "__all__", "OMP_NUM_THREADS": "1"}
"""Variables with which this process starts sooner, and has no threads that prevent it from forking.
They are not meant for the code that it runs."""


def main() -> int:
    """Fork for each order, until the service closes the socket that is our standard input."""
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
        if os.fork() == 0:
            control.close()
            os._exit(_done(Path(os.fsdecode(message)), answer, parent=ours))
        os.close(answer)


def _done(directory: Path, answer: int, *, parent: int) -> int:
    """Carry out the order in ``directory``, in a child; returns its exit code."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before this process had requested to end with it
        return 1
    os.write(answer, b"%d\n" % os.getpid())
    said: dict[str, Any] = {}
    try:
        order = json.loads((directory / ORDER_FILE).read_bytes())
        # The others run jobs, which have limits of their own.
        if order.get("look") not in (None, "changed"):
            _limit_memory()
        (look if "look" in order else _transform)(directory, order)
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


def _limit_memory() -> None:
    """Limit the memory of this process to what it has now and what a reader of shards may use."""
    found = re.search(r"^VmData:\s+(\d+) kB", Path("/proc/self/status").read_text("ascii"), re.M)
    assert found is not None
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = (int(found[1]) << 10) + memory_max_bytes(WHOLE_BYTES)
    if hard == resource.RLIM_INFINITY or most < hard:
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _transform(directory: Path, order: dict[str, Any]) -> None:
    """Run the job."""
    spec = parse_spec({**order["spec"], "output_bck": f"file://{directory / OUT_DIRECTORY}"}).spec
    api.run(spec, options=_options(directory, order))


def _options(directory: Path, order: dict[str, Any]) -> RunOptions:
    """The options of a job of one shard. Code runs if the service has recorded who allowed it."""
    scratch = directory / "scratch"
    scratch.mkdir()
    return RunOptions(
        root=Path(order["root"]),
        scratch=scratch,
        workers=1,
        memory_max_bytes=min(order["memory_max_bytes"] or MEMORY_BYTES_MAX, MEMORY_BYTES_MAX),
        bandwidth_max_bytes_per_s=order["bandwidth_max_bytes_per_s"],
        settings=Settings.of_json(order["settings"]),
        forks=True,
        runs_code=bool((order["spec"].get("transform") or {}).get("allowed_by")),
        fetch=replace(FetchPolicy.of(order["fetch"]), own=(str(directory),)),
    )


def look(directory: Path, order: dict[str, Any]) -> None:
    """Write the names of the files in a shard, one of these files, or what else the order
    requests."""
    settings = Settings.of_json(order["settings"])
    ref = resolve_ref(parse_bucket(order["bucket"], ais_is_there=settings.ais_is_there), settings)
    bucket = open_bucket(
        ref,
        root=Path(order["root"]),
        limits=settings.limits(ref),
        policy=FetchPolicy.of(order["fetch"]),
    )
    with ExitStack() as ends:
        made = ends.enter_context((directory / OUT_DIRECTORY / MEMBERS_FILE).open("wb"))
        what = order["look"]
        if what in _BUCKET_LOOKS:
            pieces: Iterator[memoryview | bytes] = _BUCKET_LOOKS[what](bucket, order)
        elif what in _SHARD_LOOKS:
            shard = ends.enter_context(_opened(bucket, order))
            pieces = _SHARD_LOOKS[what](shard, order)
        elif what == "changed":
            shard = ends.enter_context(_opened(bucket, order))
            pieces = shard_looks.changed(shard, order, directory, _options(directory, order))
        else:
            contents = ends.enter_context(open_contents(bucket, order["name"]))
            pieces = _list(contents) if what == "list" else _member(contents, order["member"])
        for piece in pieces:
            made.write(piece)


@contextlib.contextmanager
def _opened(bucket: Bucket, order: dict[str, Any]) -> Iterator[Shard]:
    """The shard, whose headers are read once: its index is kept, and dropped when the shard
    changes."""
    cache = IndexCache(Path(order["indexes"]), bytes_max=INDEXES_BYTES_MAX)
    info = bucket.stat(order["name"])
    known = cache.find(bucket.uri, info) if info.size_bytes >= KEPT_FROM_BYTES else None
    with Shard(ShardPlace(bucket, info.name, info=info), index=known) as shard:
        yield shard
        if known is None and info.size_bytes >= KEPT_FROM_BYTES:
            index = shard.record_index
            if index is not None:
                cache.keep(bucket.uri, info, index)


def _list(contents: ShardContents) -> Iterator[bytes]:
    too_many = TooLargeError(
        f"the shard has more than {MEMBERS_MAX:,} files", hint="`dsort inspect` lists them all"
    )
    if contents.count_records() > MEMBERS_MAX:  # a record has at least one file
        raise too_many
    for count, (name, size_bytes) in enumerate(contents.files()):
        if count == MEMBERS_MAX:
            raise too_many
        yield json.dumps([name, size_bytes]).encode() + b"\n"


def _member(contents: ShardContents, name: str) -> Iterator[memoryview | bytes]:
    part = contents.member(name)
    if part is None:
        raise NotFoundError(f"the shard has no file {name}")
    if contents.size_bytes(part) > MEMBER_BYTES_MAX:
        raise TooLargeError(
            f"{name} has more than {format_bytes(MEMBER_BYTES_MAX)}", hint="`dsort cat` writes it"
        )
    yield from contents.payloads(part)


_BUCKET_LOOKS: Final[Mapping[str, Callable[[Bucket, Any], Iterator[Any]]]] = {
    "counts": shard_looks.counts,
    "garbage": shard_looks.garbage,
}
_SHARD_LOOKS: Final[Mapping[str, Callable[[Shard, Any], Iterator[bytes]]]] = {
    "records": shard_looks.records,
    "shown": shard_looks.shown,
    "payload": shard_looks.payload,
}


if __name__ == "__main__":
    sys.exit(main())
