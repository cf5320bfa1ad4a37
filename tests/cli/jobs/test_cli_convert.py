"""``dsort convert``: one container to another and back, byte for byte."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from tests.support.commands import CommandLine
from tests.support.datasets import Member, Shard, files_of, payloads_in, write_shards

SHARDS = {
    f"s-{number}.tar": Shard(
        tuple(
            Member(f"{number}{i}.{extension}", b"%d %d" % (number, i))
            for i in range(3)
            for extension in ("cls", "txt")
        )
    )
    for number in range(2)
}


def test_what_is_converted_comes_back_in_its_order(cli: CommandLine, tmp_path: Path) -> None:
    write_shards(tmp_path / "in", SHARDS)
    there = cli("convert", "in", "there", "--to", "tfrecord", "--workers", 1)
    assert there.code == 0
    assert "2 in, 2 out" in there.out
    names = sorted(path.name for path in (tmp_path / "there").glob("*.tfrecord"))
    assert names == ["shard-000000.tfrecord", "shard-000001.tfrecord"]
    back = ("convert", "there", "back", "--to", ".tar", "--key-field", "__key__")
    assert cli(*back, "--shard-records", 4, "--names", "b-%d", "--workers", 1).code == 0
    assert sorted(files_of(tmp_path / "back")) == ["b-0.tar", "b-1.tar"]
    found = {name: data for name, data in payloads_in(tmp_path / "back") if "__key__" not in name}
    assert found == {
        member.name: member.payload for shard in SHARDS.values() for member in shard.members
    }


@pytest.mark.parametrize(
    ("args", "code", "named"),
    [
        (("mixed", "x", "--to", "tar"), 2, ("1 .tar, 1 .tfrecord", "--from")),
        (("mixed", "x", "--to", "foo"), 2, ("--from",)),
        (("mixed", "x", "--to", "foo", "--from", "tar"), 2, (".foo",)),
        (("mixed", "x", "--to", "tar", "--from", "foo"), 2, ("--from", ".foo")),
        (("empty", "x", "--to", "tar"), 3, ("empty",)),
        (("nowhere", "x", "--to", "tar"), 4, ("nowhere",)),
        (("-", "x", "--to", "tar"), 2, ("--from tar",)),
    ],
)
def test_what_cannot_be_converted_is_reported(
    args: tuple[str, ...], code: int, named: tuple[str, ...], cli: CommandLine, tmp_path: Path
) -> None:
    write_shards(tmp_path / "mixed", {"a.tar": b"", "b.tfrecord": b""})
    write_shards(tmp_path / "empty", {"notes.md": b""})
    ended = cli("convert", *args)
    assert ended.code == code
    assert [name for name in named if name not in " ".join(ended.err.split())] == []
    assert not (tmp_path / "x").exists()


def test_standard_input_is_converted_as_the_container_that_is_named(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = next(iter(SHARDS))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(SHARDS[name].data)))
    ended = cli("convert", "-", "out", "--from", "tar", "--to", "zip", "--workers", 1)
    assert (ended.code, "warning" in ended.err) == (0, False)
    with zipfile.ZipFile(tmp_path / "out/shard-000000.zip") as shard:
        found = {each: shard.read(each) for each in shard.namelist()}
    assert found == {each.name: each.payload for each in SHARDS[name].members}
