"""``gen-shards``, ``ls`` and ``inspect``: making shards, finding them, and looking into them."""

from __future__ import annotations

import io
import json
import re
import tarfile
from pathlib import Path

import pytest

from tests.support.commands import CommandLine

pytestmark = pytest.mark.usefixtures("workers_here")


def members(path: Path) -> list[str]:
    with tarfile.open(path) as archive:
        return archive.getnames()


@pytest.mark.parametrize("form", ["ustar", "gnu", "pax"])
def test_shards_are_readable_tars_of_the_form_asked_for(
    form: str, cli: CommandLine, tmp_path: Path
) -> None:
    ended = cli(
        "gen-shards", "images/s-{00..02}.tar",
        "--fcount", 3, "--fsize", "2KB", "--fext", "jpg,.cls", "--tform", form,
    )  # fmt: skip
    assert ended.code == 0
    assert "3 shards, 9 records" in ended.out
    keys = []
    for number in range(3):
        with tarfile.open(tmp_path / "images" / f"s-{number:02}.tar") as archive:
            infos = archive.getmembers()
        assert [info.size for info in infos] == [2048] * 6
        assert [info.name.partition(".")[2] for info in infos] == ["jpg", "cls"] * 3
        assert all(bool(info.pax_headers) == (form == "pax") for info in infos)
        keys += [info.name.partition(".")[0] for info in infos[::2]]
    assert len(set(keys)) == 9
    magic = (tmp_path / "images" / "s-00.tar").read_bytes()[257:265]
    assert magic == (b"ustar  \0" if form == "gnu" else b"ustar\x0000")


def test_the_seed_decides_the_bytes(cli: CommandLine, tmp_path: Path) -> None:
    for bucket, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        assert cli("gen-shards", f"{bucket}/s-@1.tar", "--seed", seed).code == 0
    one, same, other = (
        [(tmp_path / bucket / f"s-{n}.tar").read_bytes() for n in (0, 1)] for bucket in "abc"
    )
    assert one == same
    assert one != other
    assert one[0] != one[1]


def test_taken_names_are_refused_before_anything_is_written(
    cli: CommandLine, tmp_path: Path
) -> None:
    assert cli("gen-shards", "images/s-1.tar").code == 0
    before = (tmp_path / "images" / "s-1.tar").read_bytes()
    refused = cli("gen-shards", "images/s-{0..2}.tar", "--seed", "9")
    assert refused.code == 2
    assert "1 of the 3 shards" in refused.err
    assert "s-1.tar" in refused.err
    assert sorted(path.name for path in (tmp_path / "images").iterdir()) == ["s-1.tar"]
    assert (tmp_path / "images" / "s-1.tar").read_bytes() == before
    assert cli("gen-shards", "images/s-{0..2}.tar", "--seed", "9", "--overwrite").code == 0
    assert (tmp_path / "images" / "s-1.tar").read_bytes() != before


@pytest.mark.parametrize(
    ("target", "named"),
    [
        ("s-{00..02}.tar", "bucket"),
        ("images/s-{00..02}", ".tar"),
        ("images/s-%d.tar", "100,000"),
        ("images/s-{5..2}.tar", "'start'"),
        ("images/s-{0..1}?.tar", "'?'"),
        ("images/s-{0..200000}.tar", "100,000"),
    ],
)
def test_targets_that_make_no_sense_are_refused(
    target: str, named: str, cli: CommandLine, tmp_path: Path
) -> None:
    ended = cli("gen-shards", target)
    assert ended.code == 2
    assert named in ended.err
    assert list(tmp_path.rglob("*.tar")) == []


@pytest.mark.parametrize("extensions", ["", "a,,b", "a,a", "x/y"])
def test_extensions_that_make_no_sense_are_refused(extensions: str, cli: CommandLine) -> None:
    ended = cli("gen-shards", "images/s.tar", "--fext", extensions)
    assert ended.code == 2
    assert "--fext" in ended.err


def test_gen_shards_reports_in_json(cli: CommandLine, tmp_path: Path) -> None:
    report = json.loads(cli("gen-shards", "images/s-@1.tar", "--json", "--fext", "a,b").out)
    written = sum(path.stat().st_size for path in (tmp_path / "images").iterdir())
    assert report == {
        "bucket": (tmp_path / "images").as_uri(),
        "shards": ["s-0.tar", "s-1.tar"],
        "records": 10,
        "members": 20,
        "file_bytes": written,
        "seed": "0",
    }


def test_ls_lists_names_and_sizes(cli: CommandLine, tmp_path: Path) -> None:
    cli("gen-shards", "images/s-{08..11}.tar", "--fcount", 0)
    (tmp_path / "images" / "train").mkdir()
    (tmp_path / "images" / "train" / "x.tar").write_bytes(bytes(1536))
    ended = cli("ls", "images")
    assert [line.split(maxsplit=1) for line in ended.out.splitlines()] == [
        ["NAME", "SIZE"],
        ["s-08.tar", "1 KiB"],
        ["s-09.tar", "1 KiB"],
        ["s-10.tar", "1 KiB"],
        ["s-11.tar", "1 KiB"],
        ["train/x.tar", "1.5 KiB"],
    ]
    assert len(cli("ls", "images", "--prefix", "s-1").out.splitlines()) == 3
    as_json = json.loads(cli("ls", "images", "--prefix", "train/", "--json").out)
    assert as_json["bucket"] == (tmp_path / "images").as_uri()
    assert [(each["name"], each["size_bytes"]) for each in as_json["objects"]] == [
        ("train/x.tar", 1536)
    ]


def test_a_bucket_may_be_a_name_a_path_or_a_uri(cli: CommandLine, tmp_path: Path) -> None:
    cli("gen-shards", "data/images/s.tar")
    expected = cli("ls", "images", "--root", "data").out
    assert "s.tar" in expected
    for bucket in ("data/images", "./data/images", tmp_path / "data" / "images"):
        assert cli("ls", bucket).out == expected
    assert cli("ls", (tmp_path / "data" / "images").as_uri()).out == expected


def test_the_data_root_may_come_from_the_environment(command: CommandLine, tmp_path: Path) -> None:
    root = {"DSORT_ROOT": str(tmp_path / "data")}
    assert command("gen-shards", "images/s.tar", env=root).code == 0
    assert (tmp_path / "data" / "images" / "s.tar").is_file()
    assert "s.tar" in command("ls", "images", env=root).out


def test_an_empty_listing_says_so_and_succeeds(cli: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    ended = cli("ls", "images", "--prefix", "zzz")
    assert (ended.code, ended.out) == (0, "")
    assert "zzz" in ended.err


def test_names_in_a_listing_cannot_steer_the_terminal(cli: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a\x1b[2Jb").touch()
    (tmp_path / "images" / "é.tar").touch()
    out = cli("ls", "images").out
    assert "a\\x1b[2Jb" in out
    assert "é.tar" in out


def test_inspect_shows_a_plain_shard(cli: CommandLine, tmp_path: Path) -> None:
    cli("gen-shards", "images/s.tar", "--fcount", 12, "--fsize", 100, "--fext", "jpg,cls")
    ended = cli("inspect", "images/s.tar")
    lines = dict(line.split(maxsplit=1) for line in ended.out.splitlines()[:7] if line)
    assert lines["records"] == "12"
    assert lines["members"] == "24"
    assert lines["extensions"] == ".cls 12, .jpg 12"
    assert lines["odd"] == "nothing"
    assert "... and 2 more records" in ended.out
    assert "000011" not in ended.out
    assert "000011" in cli("inspect", "images/s.tar", "--all").out
    assert cli("inspect", "s.tar", "--root", "images").out == ended.out


def odd_shard(path: Path) -> None:
    def member(archive: tarfile.TarFile, name: str, kind: bytes = tarfile.REGTYPE) -> None:
        info = tarfile.TarInfo(name)
        info.type = kind
        data = name.encode() if kind == tarfile.REGTYPE else b""
        info.size = len(data)
        info.linkname = "elsewhere" if kind == tarfile.SYMTYPE else ""
        archive.addfile(info, io.BytesIO(data))

    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as archive:
        member(archive, "d", tarfile.DIRTYPE)
        member(archive, "d/a.jpg")
        member(archive, "d/b.jpg")
        member(archive, "d/b.jpg")
        member(archive, "d/a.cls")
        member(archive, "d/c.jpg")
        member(archive, "d/b.jpg")
        member(archive, "README")
        member(archive, "link.txt", tarfile.SYMTYPE)


@pytest.mark.parametrize("count", [0, 1, 999, 2500])
def test_inspect_lists_any_number_of_records_in_one_document(
    count: int, cli: CommandLine, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("x\n" * count)
    done = cli("inspect", "a.txt", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert done.out == json.dumps(found, indent=2) + "\n"
    assert [each["key"] for each in found["records"]] == [f"a-{n:09d}" for n in range(count)]
    for record in found["records"]:
        assert record.keys() == {"key", "extensions", "payload_bytes"}
        assert (record["extensions"], record["payload_bytes"]) == ([".txt"], 1)


def test_inspect_names_what_is_odd(cli: CommandLine, tmp_path: Path) -> None:
    odd_shard(tmp_path / "odd.tar")
    summary = json.loads(cli("inspect", "odd.tar", "--json").out)
    found = {each["kind"]: (each["count"], each["samples"]) for each in summary["oddities"]}
    assert found["directories"][0] == 1
    assert found["symlinks"] == (1, ["link.txt"])
    assert found["stray_members"] == (1, ["README"])
    assert found["duplicated_records"] == (1, ["d/b.jpg"])
    assert found["non_adjacent"][0] > 0
    assert found["duplicate_keys"] == (2, ["d/b", "d/b"])
    records = {each["key"]: each["extensions"] for each in summary["records"]}
    assert records["d/a"] == [".jpg", ".cls"]
    assert records["README"] == [""]
    assert summary["members"] == 9
    text = cli("inspect", "odd.tar").out
    assert "README" in text
    assert "nothing" not in text


def test_inspect_of_a_truncated_shard_names_the_offset(cli: CommandLine, tmp_path: Path) -> None:
    cli("gen-shards", "images/s.tar", "--fsize", 2000)
    whole = (tmp_path / "images" / "s.tar").read_bytes()
    (tmp_path / "images" / "s.tar").write_bytes(whole[:3000])
    ended = cli("inspect", "images/s.tar")
    assert ended.code == 3
    assert re.search(r"s\.tar .* at byte \d", ended.err)


def test_inspect_says_how_a_shard_ends(cli: CommandLine, tmp_path: Path) -> None:
    cli("gen-shards", "images/s.tar", "--fsize", 2000)
    whole = (tmp_path / "images" / "s.tar").read_bytes()
    odd = {
        "zeros": ("blank", bytes(8192)),
        "nothing": ("blank", b""),
        "torn": ("unexplained_zeros", whole[:5120].ljust(len(whole), b"\0")),
        "no-end": ("missing_end", whole[:-512]),
        "junk": ("trailing_bytes", whole + b"junk" * 128),
        "two": ("concatenated", whole + whole),
        "tapes": ("unusual_padding", whole.ljust(1 << 20, b"\0")),
    }
    for name, (kind, data) in odd.items():
        (tmp_path / f"{name}.tar").write_bytes(data)
        summary = json.loads(cli("inspect", f"{name}.tar", "--json").out)
        assert kind in [each["kind"] for each in summary["oddities"]]


def test_a_name_with_a_line_break_makes_no_line_of_its_own(
    cli: CommandLine, tmp_path: Path
) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a\nerror: b\nhint: c.tar").write_bytes(b"no tar" * 500)
    ended = cli("inspect", "images/a\nerror: b\nhint: c.tar")
    lines = [line for line in ended.err.splitlines() if line.startswith(("error: ", "hint: "))]
    assert [line.partition(":")[0] for line in lines] == ["error", "hint"]
