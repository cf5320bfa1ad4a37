"""The meter of ``dsort/bounds.py``: measures the costs of a reader of a hostile shard, and compares
them with the law there.

Write the shard to a file, and give its path to ``check_reader`` with the name of a reader::

    @pytest.mark.parametrize("reader", READERS)
    def test_readers_of_long_names_keep_within_bounds(reader: str, tmp_path: Path) -> None:
        path = tmp_path / "s.tar"
        path.write_bytes(chain_of_long_names())
        cost = check_reader(reader, path)   # asserts the law, which allows a refusal
        assert cost.error == "CorruptShardError"   # "" if the reader read the whole shard

The reader runs in a fork of a process that has loaded the libraries, under limits of address space
and processor time, so that a reader without bounds cannot harm the machine. ``READERS`` is all
readers by name, with the limit of each one's buffer.
"""

from __future__ import annotations

import json
import os
import re
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final, NoReturn

from dsort.bounds import memory_max_bytes, processor_max_s, produced_max_bytes
from dsort.errors import DsortError
from tests.support.children import READERS as PROCESS
from tests.support.forked import Nursery, become_command

MIB: Final = 1 << 20
SPARE_BYTES: Final = 2 << 30
"""Address space beyond the limit of the law: allocators reserve some that they never use."""
SPARE_S: Final = 5  # times
COUNTED: Final = 500_000
COUNTED_S: Final = 0.018
"""The seconds that counting to ``COUNTED`` takes on the machine of the limits in
``dsort/bounds.py``."""
END_S_MAX: Final = 300.0
RECORDS_MAX: Final = 50_000
"""At most so many records of a shard are read: it may have millions."""
LOADED: Final = (
    *(__name__, "dsort.__main__", "dsort.cli.look", "dsort.loader.loader"),
    *("dsort.service.aistore.shard_works", "dsort.reading.dataset", "dsort.shard_contents"),
    *("numpy.ma", "pyarrow.compute", "pyarrow.ipc", "pyarrow.parquet"),
)


NO_REFUSALS: Final = ("exit 1", "exit 5", "StorageFullError")
"""The ends of a reader that are no refusal of a shard: a bug, or too little memory or disk."""
PLACE: Final = re.compile(r"at byte \d+|\b(record|column) \S+|-\d{9}\b|\bindex\.json\b")
"""The place that a refusal names: a byte, a record (by its key or number), a column, or the file
beside the shard that describes it."""
UNMET: Final = re.compile(r"has 0 records|are no records|is no file|has no file|[\d,]+ files$")
"""Messages that are no refusal of a shard: the shard does not have the requested record or file, or
has more files than the service lists."""


class _CommandError(Exception):
    """A command that ended with another code than 0: the code, and its standard error."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The costs of a reader. ``peak_bytes``: memory above that of the idle process; ``read_bytes``:
    the bytes read, at most the length of the shard; ``error``: the class of the error with which
    the reader ended, ``exit 3`` of a command, or ""; ``detail``: the text of the error, or the
    standard error of the command."""

    peak_bytes: int
    processor_s: float
    read_bytes: int
    produced_bytes: int
    error: str = ""
    detail: str = ""


def check_reader(reader: str, path: Path, *, max_expansion: float = 200) -> Cost:
    """The costs of ``reader`` for the shard ``path``. Fails if they are above the law, or if the
    reader neither reads the shard nor refuses it with an error that names shard and place."""
    _, buffer_bytes = READERS[reader]
    cost = measure(reader, path)
    said = f"{reader} of {path.name}: {cost}"
    assert cost.error not in NO_REFUSALS, said
    assert "alloc of size" not in cost.detail, said  # pyarrow at the memory limit
    if cost.error and not UNMET.search(cost.detail):
        assert path.name in cost.detail, said
        assert PLACE.search(cost.detail), said
    assert cost.peak_bytes <= memory_max_bytes(buffer_bytes), said
    assert cost.processor_s <= processor_max_s(cost.read_bytes, cost.produced_bytes), said
    assert cost.produced_bytes <= produced_max_bytes(cost.read_bytes, max_expansion), said
    return cost


def measure(reader: str, path: Path) -> Cost:
    """The costs of ``reader`` for the shard ``path``, without comparing them with the law."""
    with tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as errors:
        process = Nursery.called(PROCESS, LOADED).begin(
            f"{__name__}:become_reader",
            reader,
            str(path),
            descriptors=[answer.fileno(), errors.fileno()],
        )
        try:
            code = process.wait(END_S_MAX)
        finally:
            process.kill()
        answer.seek(0)
        said = answer.read()
        errors.seek(0)
        text = errors.read().decode()[-2000:]
        assert said, f"{reader} of {path.name} ended with {code}, by a bug or its limits: {text}"
    return Cost(**json.loads(said))


def become_reader(descriptors: list[int], parent: int, reader: str, where: str) -> NoReturn:
    """Turn this process into that of a reader."""
    answer = os.dup(descriptors[0])
    become_command(descriptors, answer)
    path, (read, buffer_bytes) = Path(where), READERS[reader]
    with tempfile.TemporaryDirectory() as directory:
        _limit(memory_max_bytes(buffer_bytes), path.stat().st_size)
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
        counted_s = _counted_s()
        idle, before, began = _status("VmRSS"), _read_bytes(), time.process_time()
        produced, error, detail = 0, "", ""
        try:
            produced = read(path, Path(directory))
        except _CommandError as ended:
            error, detail = ended.args
        except DsortError as refused:
            error, detail = type(refused).__name__, str(refused)
        processor_s = time.process_time() - began
        slower = max((counted_s + _counted_s()) / (2 * COUNTED_S), 1)
        read_bytes = min(_read_bytes() - before, path.stat().st_size)
        cost = {
            "peak_bytes": _status("VmHWM") - idle,
            "processor_s": processor_s / slower,
            "read_bytes": read_bytes,
            "produced_bytes": produced,
            "error": error,
            "detail": detail,
        }
    os.write(answer, json.dumps(cost).encode())
    sys.exit()


def _counted_s() -> float:
    began, total = time.process_time(), 0
    for number in range(COUNTED):
        total += number
    return time.process_time() - began


def _limit(memory_bytes: int, file_bytes: int) -> None:
    most = _status("VmSize") + memory_bytes + SPARE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    seconds = SPARE_S * int(1 + processor_max_s(file_bytes, produced_max_bytes(file_bytes, 1)))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _status(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.M)
    assert found is not None
    return int(found[1]) << 10


def _read_bytes() -> int:
    found = re.search(r"^rchar: (\d+)", Path("/proc/self/io").read_text(), re.M)
    assert found is not None
    return int(found[1])


# -- readers: each gives the number of bytes that it produced --------------------------------------


def _scan(key_field: str = "") -> Callable[[Path, Path], int]:
    """A scan. ``key_field``: where it finds the keys of lines and objects."""

    def run(path: Path, directory: Path) -> int:
        from dsort.containers.base import ContainerOptions
        from dsort.storage.directory.bucket import LocalBucket
        from tests.support.internals import BUFFER_BYTES, ShardReader

        reader = ShardReader(BUFFER_BYTES, None, ContainerOptions(key_field=key_field))
        with reader.open(LocalBucket(path.parent), path.name) as shard:
            members = shard.members()
        return int(members.payload_bytes.sum())

    return run


def _open(path: Path, directory: Path) -> int:
    """The first record, the one in the middle, and the last."""
    import dsort

    produced = 0
    with dsort.open(path) as shard:
        count = len(shard)
        for number in dict.fromkeys((0, count // 2, count - 1) if count else ()):
            record = shard[number]
            assert record.key == shard.keys[number]
            produced += sum(map(len, record.members.values()))
    return produced


def _read(path: Path, directory: Path) -> int:
    import dsort

    records = dsort.read_shards(path)
    return sum(
        sum(map(len, record.members.values())) + len(record.key)
        for record in islice(records, RECORDS_MAX)
    )


def _load(path: Path, directory: Path) -> int:
    """The first samples, in the order of the shard."""
    from dsort.loader import Loader

    produced = 0
    loader = Loader(path, batch_size=None, memory_bytes=_LOADER_BYTES, threads=1)
    for sample in islice(loader, RECORDS_MAX):
        produced += sum(len(each) for each in sample.values() if isinstance(each, bytes | str))
    return produced


def _inspect(path: Path, directory: Path) -> int:
    """The summary, whose figures cover the whole shard, and the records that are shown first."""
    from dsort.shard_contents import inspect_object
    from dsort.storage.directory.bucket import LocalBucket

    summary = inspect_object(LocalBucket(path.parent), path.name)
    return summary.payload_bytes + sum(len(each.key) for each in summary.records[:10])


def _command(*arguments: str) -> Callable[[Path, Path], int]:
    """A command line, whose outputs go to files. ``SHARD`` among its arguments is the path."""

    def run(path: Path, directory: Path) -> int:
        from dsort.cli.main import main

        out, errors = directory / "out", directory / "errors"
        for stream, where in ((1, out), (2, errors)):
            with where.open("wb") as file:
                os.dup2(file.fileno(), stream)
        code = main([str(path) if each == "SHARD" else each for each in arguments])
        sys.stdout.flush()
        if code:
            raise _CommandError(f"exit {code}", errors.read_text()[:2000])
        return out.stat().st_size

    return run


def _look(**order: Any) -> Callable[[Path, Path], int]:
    """A look of the service, by the function that its processes call."""

    def run(path: Path, directory: Path) -> int:
        from msgspec import to_builtins

        from dsort.service.aistore.shard_works import WORKS
        from dsort.service.objects.shard_main import MEMBERS_FILE, OUT_DIRECTORY
        from dsort.settings import Settings
        from dsort.storage.network_policy import FetchPolicy

        (directory / OUT_DIRECTORY).mkdir(exist_ok=True)
        around = {
            "root": str(path.parent.parent),
            "indexes": str(directory / "indexes"),
            "settings": to_builtins(Settings()),
            "fetch": FetchPolicy(roots=(str(path.parent.parent),)).to_json(),
            "bucket": f"file://{path.parent}",
            "name": path.name,
        }
        WORKS[order["look"]](directory, {**around, **order})
        return (directory / OUT_DIRECTORY / MEMBERS_FILE).stat().st_size

    return run


def _first_member(path: Path, directory: Path) -> int:
    """The look for one member, by the name that the list of members begins with."""
    from dsort.service.objects.shard_main import MEMBERS_FILE, OUT_DIRECTORY

    _look(look="list")(path, directory)
    made = directory / OUT_DIRECTORY / MEMBERS_FILE
    with made.open("rb") as lines:
        name, _ = json.loads(next(lines, '["none", 0]'))
    listed_bytes = made.stat().st_size
    return listed_bytes + _look(look="member", member=name)(path, directory)


def _changed(path: Path, directory: Path) -> int:
    """The first record after a transform."""
    order = {"memory_max_bytes": 0, "bandwidth_max_bytes_per_s": None}
    spec = {"algorithm": {"kind": "none"}, "output_format": "x-{0..9}", "output_shard_size": "1MB"}
    return _look(look="changed", number=0, spec=spec, **order)(path, directory)


_LOADER_BYTES: Final = 64 * MIB

READERS: Final[dict[str, tuple[Callable[[Path, Path], int], int]]] = {
    "scan": (_scan(), 64 * MIB),
    "scan by key": (_scan("id"), 64 * MIB),
    "dsort.open": (_open, 128 * MIB),
    "dsort.read_shards": (_read, 64 * MIB),
    "dsort.Loader": (_load, _LOADER_BYTES),
    "inspect": (_inspect, 128 * MIB),
    "inspect --json": (_command("inspect", "SHARD", "--json"), 128 * MIB),
    "cat": (_command("cat", "SHARD", "--index", "0"), 128 * MIB),
    "records": (_look(look="records", first=0, limit=20, text=""), 128 * MIB),
    "samples": (_look(look="shown", numbers=[0], random=0, seed=""), 128 * MIB),
    "payload": (_look(look="payload", number=0, member=0, range=""), 128 * MIB),
    "members": (_look(look="list"), 128 * MIB),
    "member": (_first_member, 128 * MIB),
    "changed": (_changed, 128 * MIB),
}
"""All readers by name: the function that reads, and the limit of its buffer in bytes."""
