"""AIStore's rows of ``FixedFormat``: each archive format in, each out, nothing lost on the way.

Several of these conversions crash in AIStore's dSort, or lose the sizes of members. Both sides are
made and read here by programs that are not dsort's.
"""

from __future__ import annotations

import gzip
import io
import tarfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import lz4.frame
import pytest

from tests.support.engine import run_local, spec_of
from tests.support.zips import Record, read_zips, zip_of

pytestmark = pytest.mark.usefixtures("workers_here")


def tar_of(members: list[Record]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, payload in members:
            info = tarfile.TarInfo(name)
            info.size = len(payload)
            archive.addfile(info, io.BytesIO(payload))
    return file.getvalue()


def members_of_tar(data: bytes) -> list[Record]:
    found: list[Record] = []
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            file = archive.extractfile(member)
            assert file is not None
            found.append((member.name, file.read()))
    return found


WRITE: dict[str, Callable[[list[Record]], bytes]] = {
    ".tar": tar_of,
    ".tgz": lambda members: gzip.compress(tar_of(members)),
    ".tar.lz4": lambda members: lz4.frame.compress(tar_of(members)),
    ".zip": lambda members: zip_of(members, deflated=True),  # as dSort writes them
}
READ: dict[str, Callable[[Path], list[Record]]] = {
    ".tar": lambda path: members_of_tar(path.read_bytes()),
    ".tgz": lambda path: members_of_tar(gzip.decompress(path.read_bytes())),
    ".tar.lz4": lambda path: members_of_tar(lz4.frame.decompress(path.read_bytes())),
    ".zip": lambda path: read_zips([path]),
}


@pytest.mark.sample(keep=5)
@pytest.mark.parametrize("output_extension", READ)
@pytest.mark.parametrize("input_extension", WRITE)
def test_each_archive_format_becomes_each_other_one(
    tmp_path: Path, input_extension: str, output_extension: str
) -> None:
    everything: list[Record] = []
    (tmp_path / "in").mkdir()
    for shard in range(2):
        members = [
            (f"{shard}/{number:02d}{extension}", f"{shard} {number}".encode() * 50 * number)
            for number in range(4)
            for extension in (".jpg", ".cls")
        ]
        everything += members
        (tmp_path / "in" / f"s-{shard}{input_extension}").write_bytes(
            WRITE[input_extension](members)
        )
    spec = spec_of(
        input_format="s-{0..1}",
        input_extension=input_extension,
        output_extension=output_extension,
        algorithm={"kind": "shuffle", "seed": 3},
    )
    run_local(tmp_path, spec)
    found: list[Record] = []
    for path in sorted((tmp_path / "out").glob(f"*{output_extension}")):
        found += READ[output_extension](path)
    assert Counter(found) == Counter(everything)
    assert found != everything
