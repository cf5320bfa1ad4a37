"""The wids index counts what webdataset counts, or is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import webdataset

from dsort.errors import DuplicateError, InputError, StrayMemberError
from tests.support.engine import refused, run_local, spec_of
from tests.support.tar_builder import END, header, member

pytestmark = pytest.mark.usefixtures("workers_here")

PLAIN = [
    member(b"%s.%s" % (key, ext), b"1") for key in (b"a", b"b", b"c") for ext in (b"cls", b"txt")
]
STRAYS = {
    "no extension": member(b"README", b"r"),
    "hidden": member(b".hidden.txt", b"h"),
    "a link": header(b"l.cls", 0, b"2", link=b"a.cls"),
}


def write(root: Path, *shards: bytes) -> None:
    (root / "in").mkdir()
    for number, shard in enumerate(shards):
        (root / "in" / f"in-{number}.tar").write_bytes(shard + END)


def counted(root: Path) -> dict[str, tuple[int, int]]:
    """(samples in the index, samples that webdataset reads) of each shard."""
    (index,) = (root / "out").glob("*-index.json")
    found = {}
    for shard in json.loads(index.read_text())["shardlist"]:
        url = str(root / "out" / shard["url"])
        read = webdataset.WebDataset(url, shardshuffle=False, empty_check=False)
        found[shard["url"]] = (shard["nsamples"], sum(1 for _ in read))
    return found


@pytest.mark.parametrize("stray", STRAYS)
def test_what_readers_pass_over_is_refused_or_dropped(stray: str, tmp_path: Path) -> None:
    write(tmp_path, b"".join([PLAIN[0], *PLAIN[1:], header(b"d/", 0, b"5"), STRAYS[stray]]))
    words = ("in-0.tar", "wids", "stray_members: drop")
    with refused(tmp_path, StrayMemberError, *words):
        run_local(tmp_path, spec_of(index="wids", output_shard_records=2))
    run_local(tmp_path, spec_of(index="wids", output_shard_records=2, stray_members="drop"))
    assert counted(tmp_path) == {"out-0.tar": (2, 2), "out-1.tar": (1, 1)}


@pytest.mark.parametrize("reaction", ["warn", "ignore"])
def test_neighbours_of_one_key_are_refused_or_settled(reaction: str, tmp_path: Path) -> None:
    write(tmp_path, b"".join(PLAIN), member(b"a.jpg", b"j"))
    spec = spec_of(index="wids", algorithm={"kind": "alphanumeric"}, output_shard_records=10)
    with refused(tmp_path, DuplicateError, "in-1.tar: a", "wids", "duplicate_keys: rename"):
        run_local(tmp_path, spec | {"duplicate_keys": reaction})
    assert issubclass(DuplicateError, InputError)
    run_local(tmp_path, spec | {"duplicate_keys": "rename"})
    assert counted(tmp_path) == {"out-0.tar": (4, 4)}


def test_directories_are_no_samples(tmp_path: Path) -> None:
    write(tmp_path, header(b"d/", 0, b"5") + b"".join(PLAIN))
    run_local(tmp_path, spec_of(index="wids"))
    assert counted(tmp_path) == {"out-0.tar": (3, 3)}
