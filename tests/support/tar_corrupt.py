"""Shards that are no tars, or not whole: each with the byte and the words of its refusal."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zipfile
from dataclasses import dataclass

from tests.support.tar_builder import (
    END,
    checksum,
    gnu_long,
    header,
    member,
    old_gnu_sparse,
    pax,
    pax_record,
)


@dataclass(frozen=True)
class CorruptCase:
    """A shard that must be refused at byte ``offset``, for a reason with ``reason`` in it."""

    name: str
    data: bytes
    offset: int
    reason: str


GOOD = member(b"good.jpg", b"g" * 700)
AT = len(GOOD)


def corrupt_cases() -> list[CorruptCase]:
    """All of them; most begin with a good member, so that the fault is at byte ``AT``."""
    return [*_cut(), *_foreign(), *_headers(), *_extensions(), *_links()]


def _bad(name: str, rest: bytes, reason: str, at: int = 0) -> CorruptCase:
    return CorruptCase(name, GOOD + rest, AT + at, reason)


def _cut() -> list[CorruptCase]:
    whole = member(b"b.jpg", b"b" * 700)
    return [
        _bad("cut in a header", whole[:300], "ends 300 bytes into a header"),
        _bad("cut in a payload", whole[:1000], "700 payload bytes, of which the shard holds 488"),
        _bad("cut in the padding", whole[:-20], "the padding after member 'b.jpg' is cut off"),
        _bad("cut in an end marker", bytes(200), "ends 200 bytes into a header"),
        _bad("cut in a pax header", pax({b"path": b"p" * 900})[:800], "inside a pax"),
        _bad("cut after a pax header", pax({b"path": b"p"}), "where a header has to be", 1024),
        _bad("cut after a long name", gnu_long(b"n"), "where a header has to be", 1024),
        _bad("cut in a sparse map", old_gnu_sparse(b"s", 9)[:512], "has to be", 512),
        _bad("a lone zero block, then half a block", bytes(512) + b"x" * 90, "90 bytes into", 512),
    ]


def _foreign() -> list[CorruptCase]:
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("a.jpg", b"a" * 2000)
    forms = {
        "gzip": gzip.compress(GOOD * 40),
        "bzip2": bz2.compress(GOOD),
        "xz": lzma.compress(GOOD),
        "zstd": b"\x28\xb5\x2f\xfd" + bytes(range(256)) * 4,
        "lz4": b"\x04\x22\x4d\x18" + bytes(range(256)) * 4,
        "zip": zipped.getvalue(),
    }
    return [
        *(CorruptCase(what, data, 0, f"this is {what} data") for what, data in forms.items()),
        CorruptCase("text", b"not a tar\n" * 300, 0, "this is not a tar"),
        CorruptCase("a short text", b"not a tar\n", 0, "ends 10 bytes into a header"),
        _bad("garbage after a member", b"garbage!" * 64 + END, "no header where the next member"),
        _bad("a lone zero block, then garbage", bytes(512) + b"?" * 512, "no header where", 512),
    ]  # fmt: skip


def _headers() -> list[CorruptCase]:
    wrong = bytearray(member(b"b.jpg", b"b"))
    wrong[3] ^= 1
    return [
        _bad("a wrong checksum", bytes(wrong) + END, "checksum is wrong"),
        _bad("no checksum", checksum(header(b"b.jpg"), "%.0s") + END, "checksum is wrong"),
        _bad("a size past the end", header(b"b", 10**9) + END, "1000000000 payload bytes"),
        _bad("a negative size", header(b"b", b"-0000000017\0") + END, "is negative"),
        _bad("a negative base-256 size", header(b"b", b"\xff" * 12) + END, "is negative"),
        _bad("an absurd size", header(b"b", b"\x80" + b"\x7f" * 11) + END, "of which the shard"),
        _bad("a size that is no number", header(b"b", b"12x4567\0") + END, "is unreadable"),
        _bad("a size behind a NUL", header(b"b", b"\0" + b"1" * 10) + END, "is unreadable"),
        _bad("an underscore in a size", header(b"b", b"0000_000012\0") + END, "is unreadable"),
        _bad("a directory with payload", member(b"dir/", b"x") + END, "a directory"),
        _bad("a link with payload", member(b"l", b"x" * 9, b"2", link=b"t"), "no header", 512),
        _bad("a volume of several", header(b"b.jpg", 0, b"M", style="gnu"), "multi-volume"),
        _bad("half a volume label", header(b"b.jpg", 600, b"V", style="gnu"), "volume label"),
        _bad("a volume of several in pax", pax({b"GNU.volume.filename": b"b"}, b"g"), "multi-vol"),
    ]


def _extensions() -> list[CorruptCase]:
    x, name, file = pax({b"path": b"p.jpg"}), gnu_long(b"n.jpg"), member(b"b.jpg", b"b") + END
    target, far = gnu_long(b"near.jpg", b"K"), pax({b"linkpath": b"far.jpg"})
    link = header(b"l.jpg", 0, b"2", link=b"short") + END
    long, behind = b"n" * ((1 << 20) + 1), 512 + (1 << 20) + 512
    broken = {
        "no length": b"path=p.jpg\n",
        "a length too long": b"99 path=p.jpg\n",
        "a length too short": b"5 path=p.jpg\n",
        "length zero": b"0 path=p.jpg\n",
        "no equals sign": b"13 path-p.jpg\n",
        "no keyword": b"10 =p.jpg\n",
        "garbage after a record": pax_record(b"path", b"p") + b"garbage",
    }
    return [
        *(_bad(what, pax(text) + file, "a pax header has") for what, text in broken.items()),
        _bad("pax: an empty path", pax({b"path": b""}) + file, "empty name", 1024),
        _bad("pax: NUL in a path", pax({b"path": b"a\0b"}) + file, "NUL", 1024),
        _bad("pax: a size of no digits", pax({b"size": b"1e3"}) + file, "size", 1024),
        _bad("pax: a size too large", pax({b"size": b"9" * 19}) + file, "of which the", 1024),
        _bad("pax: an endless size", pax({b"size": b"9" * 99}) + file, "unreadable", 1024),
        _bad("a name of 1 MiB", gnu_long(long) + file, "a name of 1048577 bytes", behind),
        _bad("a target of 1 MiB", gnu_long(long, b"K") + link, "target of 1048577", behind),
        _bad("pax: too large", header(b"x", 33 << 20, b"x") + file, "the limit is 32 MiB"),
        _bad("pax: more in the padding", _with_tail(x, 14) + file, "has text after its end"),
        _bad("a long name without an end", _with_tail(name, 5) + file, "has text after its end"),
        _bad("two pax headers", x + x + file, "two pax headers", 1024),
        _bad("an empty long name", gnu_long(b"") + file, "an empty long name"),
        _bad("names that differ", x + name + file, "two different long names", 2048),
        _bad("targets that differ", target + far + link, "two different link targets", 2048),
        _bad("so turned round", far + target + link, "two different link targets", 2048),
        _bad("pax: an empty target", pax({b"linkpath": b""}) + link, "empty link target", 1024),
        _bad("pax: NUL in a target", pax({b"linkpath": b"a\0b"}) + link, "link target h", 1024),
        _bad("pax, then the end", x + END, "has no member", 1024),
        _bad("a long name, then the end", name + END, "has no member", 1024),
        _bad("pax, then global", x + pax({b"uname": b"u"}, b"g") + file, "a global pax", 1024),
        _bad("pax, then a label", x + header(b"v", 0, b"V") + file, "a volume label", 1024),
        _bad("a broken global", pax(b"?", b"g") + file, "a pax header has"),
    ]  # fmt: skip


def _with_tail(extension: bytes, size: int) -> bytes:
    """The blocks ``extension`` with a header whose size is ``size``, less than their payload."""
    head = extension[:124] + b"%011o\0" % size + extension[136:512]
    return checksum(head) + extension[512 : 512 + size] + b"9 path=q\n".ljust(512 - size, b"\0")


def _links() -> list[CorruptCase]:
    def link(name: bytes, target: bytes) -> bytes:
        return header(name, 0, b"1", link=target)

    sparse = old_gnu_sparse(b"sparse", 1)
    return [
        _bad(
            "a link to nowhere", link(b"l", b"gone.jpg") + END, "'gone.jpg', is not in this shard"
        ),
        _bad("a link with a slash", link(b"l/", b"good.jpg") + END, "its name ends in '/'"),
        _bad("a link to itself", link(b"l", b"l") + END, "is not in this shard"),
        _bad("links in a ring", link(b"l", b"m") + link(b"m", b"l") + END, "back to the link"),
        _bad("a link to a directory", link(b"l", b"d") + header(b"d/", 0, b"5"), "is a directory"),
        _bad("a link to a link", link(b"l", b"s") + header(b"s", 0, b"2"), "is a symbolic link"),
        _bad("a link to a device", link(b"l", b"f") + header(b"f", 0, b"6"), "is a device"),
        _bad("a link to a sparse file", link(b"l", b"sparse") + sparse, "is a sparse file"),
    ]
