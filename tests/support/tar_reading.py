"""Reads shards again: with every kind of scan in dsort, with ``tarfile`` and with GNU tar."""

from __future__ import annotations

import io
import itertools
import os
import subprocess
import tarfile
from collections.abc import Iterable
from pathlib import Path

from dsort.containers.base import Scan
from dsort.containers.tar.container import TAR
from dsort.containers.tar.member import Window
from dsort.containers.tar.scan import TarScan
from dsort.containers.tar.vector import Blocks
from tests.support.internals import MemberKind, MemberTable
from tests.support.tar_torture import Found

scan = TAR.scan


class ByTheBook(TarScan):
    """A scan that reads every member one by one."""

    def _read_run(self, window: Window, blocks: Blocks, base: int) -> bool:
        return False


def scan_by_the_book(data: bytes) -> MemberTable:
    """``scan`` without its fast path."""
    scan = Scan(ByTheBook("s.tar", len(data)).scanner())
    if data:
        scan.feed(data, 0)
    return scan.table


def scan_in_windows(data: bytes, sizes: Iterable[int], *, before: int = 0) -> MemberTable:
    """``scan`` in windows of ``sizes`` bytes (the last size repeated), larger where the scan needs
    more. Each window begins up to ``before`` bytes before the requested byte."""
    scan = Scan(TAR.scanner("s.tar", len(data)))
    *first, last = sizes
    for size in itertools.chain(first, itertools.repeat(last)):
        need = scan.need
        if need is None:
            break
        start = max(need.offset - before, 0)
        scan.feed(memoryview(data)[start : need.offset + max(size, need.at_least)], start)
    return scan.table


def as_plain(table: MemberTable) -> tuple[object, ...]:
    """All columns of a table, for comparison."""
    columns = (table.kind, table.payload_start, table.payload_bytes)
    ranges = (table.range_start, table.range_length)
    lists = [column.tolist() for column in (*columns, *ranges)]
    return (table.names.tolist(), *lists, dict(table.literals), table.notes)


def members_in(data: bytes, table: MemberTable) -> list[Found]:
    """The members of ``data`` that ``table`` lists."""
    spans = zip(table.payload_start.tolist(), table.payload_bytes.tolist(), strict=True)
    payloads = [data[start : start + size] for start, size in spans]
    kinds = [MemberKind(kind) for kind in table.kind.tolist()]
    return [Found(*row) for row in zip(table.names.tolist(), payloads, kinds, strict=True)]


def read_with_tarfile(data: bytes) -> list[Found]:
    """The members that ``tarfile`` reads; names of directories with a slash, sparse members
    without payload."""
    found = []
    with tarfile.open(
        fileobj=io.BytesIO(data), mode="r:", encoding="utf-8", errors="surrogateescape"
    ) as archive:
        for info in archive:
            name = info.name.encode("utf-8", "surrogateescape")
            if info.issym():
                found.append(Found(name, b"", MemberKind.SYMLINK))
            elif info.isdir():
                found.append(Found(name + b"/", b"", MemberKind.DIRECTORY))
            elif info.isdev():
                found.append(Found(name, b"", MemberKind.DEVICE))
            else:
                file = archive.extractfile(info)
                assert file is not None
                found.append(Found(name, None if info.issparse() else file.read()))
    return found


def listed(data: bytes) -> bytes:
    """The output of ``tar -t``, which must print no error."""
    return _gnu_tar(data, "-t", "-P", "--quoting-style=literal")


def extracted(data: bytes, directory: Path, *, but: Iterable[str] = ()) -> dict[bytes, bytes]:
    """Path → content of each file that ``tar -x`` makes below ``directory``."""
    directory.mkdir()
    _gnu_tar(data, "-x", "-C", str(directory), *(f"--exclude={name}" for name in but))
    root = os.fsencode(directory)
    files = {}
    for parent, _, names in os.walk(root):
        for name in names:
            path = os.path.join(parent, name)  # noqa: PTH118 - pathlib takes no bytes
            if os.path.isfile(path) and not os.path.islink(path):  # noqa: PTH113, PTH114
                files[os.path.relpath(path, root)] = Path(os.fsdecode(path)).read_bytes()
    return files


def _gnu_tar(data: bytes, *arguments: str) -> bytes:
    known = [f"--warning=no-{what}" for what in ("unknown-keyword", "unknown-cast")]
    command = ["tar", "-f", "-", *known, "--warning=no-contiguous-cast", *arguments]
    done = subprocess.run(command, input=data, capture_output=True, check=True)
    assert done.stderr == b""
    return done.stdout
