"""Results are read by the readers people have: webdataset, Python's ``tarfile`` and GNU tar find in
them what they find in the inputs, and the wids index describes the shards."""

from __future__ import annotations

import hashlib
import json
import subprocess
import tarfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import webdataset

import dsort
from dsort.options import RunOptions
from dsort.spec.load import parse_spec
from tests.support.datasets import Member, Shard, small_dataset, write_shards
from tests.support.internals import JobReport

pytestmark = pytest.mark.usefixtures("workers_here")

SPECS: dict[str, dict[str, Any]] = {
    "shuffled": {"algorithm": {"kind": "shuffle", "seed": 1}, "output_shard_size": "9KB"},
    "in order": {"algorithm": {"kind": "none"}, "output_shard_records": 7},
    "by class": {
        "algorithm": {"kind": "content", "extension": ".cls", "content_key_type": "int"},
        "output_shard_count": 4,
    },
    "by key, backwards": {
        "algorithm": {"kind": "alphanumeric", "decreasing": True, "natural": True},
        "output_format": "deep/er/out-{000..004}",
    },
    "by digest": {"algorithm": {"kind": "md5"}, "output_shard_records": 20, "verify": "content"},
    "split": {
        "ekm": {"low/out-%02d": ["^0000"], "high/out-%02d": ["^0001", "^0002", "/"]},
        "ekm_default": "rest/out-%02d",
        "Config": {"ekm_missing_key": "ignore"},
        "output_shard_size": "9KB",
    },
}
LONG = "/".join(["directory"] * 15)


def dataset() -> dict[str, Shard]:
    """Records with unique keys, in all three dialects, short names and long ones."""
    shards = small_dataset(11)
    members = [
        Member(f"{LONG}/{number}.{extension}", f"{number} {extension} {form}".encode(), form=form)
        for number, form in enumerate(("gnu", "pax"))
        for extension in ("cls.txt", "jpg")
    ]
    members += [Member("täglich/groß.JPG", b"umlauts", form="pax"), Member("empty.jpg")]
    members += [Member("täglich/groß.cls", b"5", form="gnu"), Member("empty.cls", b"6")]
    members += [Member(f"{LONG}/{number}.cls", b"9") for number in range(2)]
    for number in range(4):
        key, size = f"pax{number}", 300 * number
        members.append(Member(f"{key}.cls", b"%d" % number))
        members += [Member(f"{key}.{each}", b"8" * size, form="pax") for each in ("png", "b.txt")]
    members.sort(key=lambda member: member.name.split(".")[0])  # webdataset wants them adjacent
    return {**shards, "in-7.tar": Shard(tuple(members))}


def run(root: Path, spec: Mapping[str, Any], *, move: str = "auto") -> JobReport:
    whole = {"input_bck": "in", "output_bck": "out", "output_format": "out-%03d", **spec}
    if "ekm" in spec:
        del whole["output_format"]
    options = RunOptions(root=root, workers=2, move=move)
    return dsort.run(parse_spec(whole).spec, options=options)


def shards_of(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*.tar"))


Samples = Counter[tuple[str, tuple[tuple[str, bytes], ...]]]


def with_webdataset(shards: Sequence[Path]) -> Samples:
    """All samples: key, and extension and bytes of each member."""
    names = [str(shard) for shard in shards]
    found: Samples = Counter()
    for sample in webdataset.WebDataset(names, shardshuffle=False):
        key = sample.pop("__key__")
        members = {name: data for name, data in sample.items() if not name.startswith("__")}
        found[key, tuple(sorted(members.items()))] += 1
    return found


def with_tarfile(shard: Path) -> list[tuple[str, bytes]]:
    """Name and content of all members, in order."""
    with tarfile.open(shard, "r:") as archive:
        files = [(info.name, archive.extractfile(info)) for info in archive]
        return [(name, file.read() if file else b"") for name, file in files]


def gnu_tar(*arguments: str | Path) -> str:
    """What GNU tar prints; it has nothing to complain about."""
    done = subprocess.run(["tar", *arguments], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout


def unpacked(shards: Sequence[Path], directory: Path) -> dict[str, bytes]:
    """What GNU tar makes of all shards, unpacked into one directory."""
    directory.mkdir()
    for shard in shards:
        gnu_tar("-xf", shard, "-C", directory)
    found = {path.relative_to(directory).as_posix(): path for path in directory.rglob("*")}
    return {name: path.read_bytes() for name, path in found.items() if path.is_file()}


@pytest.mark.parametrize(
    ("name", "move"),
    [*((name, "map") for name in SPECS), ("shuffled", "spill"), ("split", "spill")],
)
def test_every_reader_finds_what_was_put_in(tmp_path: Path, name: str, move: str) -> None:
    write_shards(tmp_path / "in", dataset())
    report = run(tmp_path, SPECS[name], move=move)
    inputs, outputs = shards_of(tmp_path / "in"), shards_of(tmp_path / "out")
    assert len(outputs) == report.output_shards > 1

    samples = with_webdataset(outputs)
    assert samples == with_webdataset(inputs)
    assert samples.total() == report.records

    listed = {shard: with_tarfile(shard) for shard in outputs}
    read = Counter(member for members in listed.values() for member in members)
    assert read == Counter(member for shard in inputs for member in with_tarfile(shard))
    for shard, members in listed.items():
        names = gnu_tar("-tf", shard, "--quoting-style=literal").splitlines()
        assert names == [name for name, _ in members]
    assert unpacked(outputs, tmp_path / "after") == unpacked(inputs, tmp_path / "before")


def test_webdataset_reads_renamed_records_as_records_of_their_own(tmp_path: Path) -> None:
    shards = {
        f"in-{number}.tar": Shard(
            (
                Member(f"{LONG}/a.jpg", b"%d" % number, form="pax"),
                Member("b.jpg", b"jpg %d" % number),
                Member("b.cls", b"%d" % number),
            )
        )
        for number in range(3)
    }
    write_shards(tmp_path / "in", shards)
    run(tmp_path, {"output_shard_size": "1MB", "Config": {"duplicate_keys": "rename"}})
    samples = with_webdataset(shards_of(tmp_path / "out"))
    expected: Samples = Counter()
    for number in range(3):
        suffix = f"-{number}" if number else ""
        digits = b"%d" % number
        expected[f"{LONG}/a{suffix}", (("jpg", digits),)] += 1
        expected[f"b{suffix}", (("cls", digits), ("jpg", b"jpg " + digits))] += 1
    assert samples == expected


def test_the_wids_index_describes_the_shards(tmp_path: Path) -> None:
    write_shards(tmp_path / "in", small_dataset(3))
    templates = {"z-%d": ["[0-4]$"], "a/b-%02d": ["[5-9]$"]}
    report = run(tmp_path, {"ekm": templates, "output_shard_records": 5, "index": "wids"})
    assert report.manifest_name is not None
    out = tmp_path / "out"
    name = json.loads((out / report.manifest_name).read_bytes())["index"]
    index = json.loads((out / name).read_bytes())

    assert set(index) == {"__kind__", "wids_version", "name", "shardlist"}
    assert (index["__kind__"], index["wids_version"]) == ("wids-shard-index-v1", 1)
    assert index["name"]
    urls = [shard["url"] for shard in index["shardlist"]]
    assert urls == sorted(shard.relative_to(out).as_posix() for shard in shards_of(out))
    for shard in index["shardlist"]:
        assert set(shard) == {"url", "md5sum", "nsamples", "filesize"}
        path = (out / name).parent / shard["url"]  # as its readers resolve relative names
        data = path.read_bytes()
        assert shard["filesize"] == len(data)
        assert shard["md5sum"] == hashlib.md5(data).hexdigest()
        assert shard["nsamples"] == with_webdataset([path]).total()
    assert sum(shard["nsamples"] for shard in index["shardlist"]) == report.records == 36
