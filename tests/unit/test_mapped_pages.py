"""Pages of mapped tars are mapped at once where headers lie near to each other, else as touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsort.containers.tar.container import TAR
from dsort.containers.zip.container import ZIP
from dsort.storage.directory.bucket import LocalBucket
from dsort.workers.mapped_pages import map_pages
from tests.support.datasets import Member, Shard

PAGE_BYTES = 4096


def mapped_bytes(path: Path) -> int:
    """How much of a file this process has in its page tables."""
    is_own, found = False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            is_own = line.endswith(str(path))
        elif is_own and line.startswith("Rss:"):
            found += int(line.split()[1]) << 10
    return found


@pytest.mark.parametrize(
    ("member_bytes", "count", "container", "are_all"),
    [(3_000, 1_000, TAR, True), (100_000, 40, TAR, False), (3_000, 1_000, ZIP, False)],
)
def test_pages_between_near_headers_are_mapped_at_once(
    member_bytes: int, count: int, container: object, are_all: bool, tmp_path: Path
) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(
        Shard(tuple(Member(f"{n}.bin", b"x" * member_bytes) for n in range(count))).data
    )
    with LocalBucket(tmp_path).open(path.name) as source:
        view = source.mapping()
        assert view is not None
        assert mapped_bytes(path) == 0
        map_pages(view, container)  # type: ignore[arg-type]
        assert (mapped_bytes(path) >= len(view) - PAGE_BYTES) == are_all
        map_pages(memoryview(b"no mapping" * 100), container)  # type: ignore[arg-type]
