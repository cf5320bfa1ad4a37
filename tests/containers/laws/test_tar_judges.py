"""Whatever headers a shard has: if it is read at all, ``tarfile`` and GNU tar read of the output
what dsort has read of the input, and what they can read of the input themselves."""

from __future__ import annotations

import io
import random
import subprocess
import tarfile

import pytest

from tests.support.internals import MemberKind
from tests.support.tar_builder import END, checksum, gnu_long, header, member, pax
from tests.support.tar_reading import members_in, scan
from tests.support.tar_torture import rewritten

ROUNDS = 60
FIELDS = [(100, 8), (108, 8), (116, 8), (136, 12), (329, 8), (337, 8)]
NUMBERS = [
    *(b"0000644\0", b"000644 \0", b"   644 \0", b"1750\0", b"\0", b" ", b"00000012", b"zzz"),
    *(b"12 3\0", b"9\0", b"-1\0", b"+7\0", b"\t7\0", b"7_7\0", b"\x80\0\0\0\0\0\0\7"),
    *(b"\x81\1\1", b"\xff\xff", b"7\0junk", b"\0\0001", b"0o17\0"),
]
KEYWORDS = [b"uname", b"gname", b"comment", b"SCHILY.xattr.user.a", b"path", b"mtime"]


def member_of(rng: random.Random, number: int) -> bytes:
    name, payload = b"%03d.jpg" % number, rng.randbytes(rng.choice([0, 1, 700]))
    style = rng.choice(["posix", "gnu", "v7"])
    before = b""
    sort = rng.choice(["", "", "", "L", "LL", "pax", "g", "link"])
    if sort in ("L", "LL"):
        name, style = b"long/" * 30 + name, "gnu"
        before = gnu_long(b"left/" * 30 + name) if sort == "LL" else b""
        before += shaken(rng, gnu_long(name))
    elif sort == "pax":
        records = {key: some_value(rng, key, number) for key in chosen(rng)}
        before = shaken(rng, pax(records))
    elif sort == "g":
        records = {key: some_value(rng, key, number) for key in chosen(rng)}
        records.pop(b"path", None)  # readers disagree on which members that names
        before = pax(records, b"g") if records else b""
    if sort == "link":
        return shaken(rng, header(name, 0, b"1", link=b"target.jpg", style=style))
    return before + shaken(rng, member(name[:100], payload, style=style))


def chosen(rng: random.Random) -> list[bytes]:
    return rng.sample(KEYWORDS, rng.randint(1, 3))


def some_value(rng: random.Random, keyword: bytes, number: int) -> bytes:
    if keyword == b"mtime":
        return rng.choice([b"1.5", b"17"])
    if keyword == b"path":
        return b"pax/" * 40 + b"%03d.jpg" % number
    return rng.choice([b"", b"value", b"x" * 600])


def shaken(rng: random.Random, blocks: bytes) -> bytes:
    """``blocks`` with some number of the first header replaced by any other text."""
    if rng.random() < 0.6:
        return blocks
    at, width = rng.choice(FIELDS)
    raw = rng.choice([*NUMBERS, rng.randbytes(width)])[:width]
    return checksum(blocks[:at] + raw + blocks[at + len(raw) : 512]) + blocks[512:]


def by_tarfile(data: bytes) -> list[tuple[bytes, bytes]]:
    found = []
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:", errors="surrogateescape") as archive:
        for info in archive:
            file = archive.extractfile(info)
            assert file is not None
            found.append((info.name.encode("utf-8", "surrogateescape"), file.read()))
    return found


def by_gnu_tar(data: bytes) -> tuple[list[bytes], bytes]:
    """Names, and all contents; hard links have none. It complains of numbers, but reads on."""
    outputs = []
    for option in ("-t", "-xO"):
        command = ["tar", "-f", "-", option, "-P", "--quoting-style=literal"]
        outputs.append(subprocess.run(command, input=data, capture_output=True, check=False).stdout)
    return outputs[0].splitlines(), outputs[1]


@pytest.mark.parametrize("round_", range(ROUNDS))
@pytest.mark.sample(keep=8)
def test_readers_of_the_output_see_what_is_in_the_input(round_: int, rng: random.Random) -> None:
    members = [member_of(rng, number) for number in range(rng.randint(1, 30))]
    data = member(b"target.jpg", b"target") + b"".join(members) + END
    table = scan("s.tar", data)
    assert set(table.kind.tolist()) <= {MemberKind.FILE}
    wanted = [(found.name, found.payload) for found in members_in(data, table)]
    copy = rewritten(data, table)
    assert by_tarfile(copy) == wanted
    names, contents = [name for name, _ in wanted], b"".join(payload for _, payload in wanted)
    assert by_gnu_tar(copy) == (names, contents)
    assert by_gnu_tar(data)[0] == names
    if not table.notes.hardlinks_resolved:
        assert by_gnu_tar(data)[1] == contents
    again = scan("copy.tar", copy)
    assert (again.notes.mended, again.notes.long_names_repeated) == ((), ())
