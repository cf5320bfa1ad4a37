"""The tar torture set: shards with all known features and oddities of tars, and their members.

Each case lists the members that a scan must find. These shards are made byte by byte.
``tar_written`` has shards of GNU tar, Python and webdataset, ``tar_corrupt`` has shards that must
be refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.support.internals import MemberKind, MemberTable
from tests.support.tar_builder import END, checksum, gnu_long, header, member, old_gnu_sparse, pax

FILE, LINK, DIRECTORY, DEVICE = (
    MemberKind.FILE,
    MemberKind.SYMLINK,
    MemberKind.DIRECTORY,
    MemberKind.DEVICE,
)
LONG = b"/".join([b"directory%02d" % i for i in range(16)]) + b"/long.jpg"
HUGE = b"/".join([b"d" * 50] * 20) + b"/huge.jpg"
TORN = b"\xff\xfe-not-utf8.jpg"


@dataclass(frozen=True)
class Found:
    """A member that a scan must find. ``payload``: None for a sparse member, which is not stored as
    one piece."""

    name: bytes
    payload: bytes | None = b""
    kind: MemberKind = FILE


@dataclass(frozen=True)
class TarCase:
    """A shard, its members, and the fields of its notes that must differ from their defaults."""

    name: str
    data: bytes
    members: list[Found]
    notes: dict[str, int | bool] = field(default_factory=dict)
    misread_by: str = ""  # "tarfile" or "GNU tar": reads a member unlike all others


def rewritten(data: bytes, table: MemberTable) -> bytes:
    """The output shard that holds all members of ``table`` in their order."""
    parts = []
    for row in range(len(table)):
        start, length = int(table.range_start[row]), int(table.range_length[row])
        parts += [table.literals.get(row, b""), data[start : start + length]]
    return b"".join([*parts, END])


def crafted_cases() -> list[TarCase]:
    """Shards made byte by byte."""
    return [*_names(), *_numbers(), *_kinds(), *_ends(), *_pax(), *_links(), *_globals()]


def _names() -> Iterable[TarCase]:
    body = b"payload"
    yield TarCase(
        "ustar names, short, full and with a prefix",
        member(b"a.jpg", body)
        + member(b"n" * 96 + b".jpg", body)
        + member(b"b.jpg", body, prefix=b"some/dir")
        + member(b"m" * 100, body, prefix=b"p" * 155)
        + END,
        [
            Found(b"a.jpg", body),
            Found(b"n" * 96 + b".jpg", body),
            Found(b"some/dir/b.jpg", body),
            Found(b"p" * 155 + b"/" + b"m" * 100, body),
        ],
    )
    yield TarCase(
        "a GNU header keeps times where ustar has its prefix",
        member(b"a.jpg", body, style="gnu", tail=b"14000000000\0" * 2) + END,
        [Found(b"a.jpg", body)],
        misread_by="tarfile",  # it takes the times for a prefix
    )
    yield TarCase(
        "GNU long names, of one block and of several",
        b"".join(
            gnu_long(name) + member(name[:100], body, style="gnu") for name in (LONG, HUGE, LONG)
        )
        + END,
        [Found(LONG, body), Found(HUGE, body), Found(LONG, body)],
    )
    yield TarCase(
        "GNU long link target and long name",
        gnu_long(HUGE, b"K")
        + gnu_long(LONG)
        + header(LONG[:100], 0, b"2", link=HUGE[:100], style="gnu")
        + member(b"a.jpg", body)
        + END,
        [Found(LONG, b"", LINK), Found(b"a.jpg", body)],
    )
    yield TarCase(
        "names that are no UTF-8, hold blanks and line feeds",
        member(TORN, body) + member(b"a b\nc.jpg", body) + END,
        [Found(TORN, body), Found(b"a b\nc.jpg", body)],
    )
    yield TarCase(
        "V7 headers without magic, a directory by its slash",
        member(b"dir/", b"", b"\0", style="v7")
        + member(b"dir/a.jpg", body, b"\0", style="v7")
        + member(b"dir/b.jpg", body * 200, b"\0", style="v7")
        + END,
        [
            Found(b"dir/", b"", DIRECTORY),
            Found(b"dir/a.jpg", body),
            Found(b"dir/b.jpg", body * 200),
        ],
    )
    inner = member(b"inner.jpg", body) + END
    yield TarCase(
        "a tar inside a tar, between many small members",
        b"".join(member(b"%04d.jpg" % i, body) for i in range(600))
        + member(b"inner.tar", inner)
        + b"".join(member(b"%04d.tar" % i, inner) for i in range(80))
        + END,
        [
            *(Found(b"%04d.jpg" % i, body) for i in range(600)),
            Found(b"inner.tar", inner),
            *(Found(b"%04d.tar" % i, inner) for i in range(80)),
        ],
    )


def _numbers() -> Iterable[TarCase]:
    body = b"x" * 1000
    forms = {
        "blanks before the digits": b"%11o\0" % 1000,
        "a blank after them": b"%011o " % 1000,
        "twelve digits": b"%012o" % 1000,
        "few digits": b"1750\0\0\0\0\0\0\0\0",
        "base-256": b"\x80" + (1000).to_bytes(11, "big"),
    }
    for what, size in forms.items():
        yield TarCase(
            f"a size with {what}",
            header(b"a.jpg", size) + body + bytes(24) + member(b"b.jpg", b"b") + END,
            [Found(b"a.jpg", body), Found(b"b.jpg", b"b")],
        )
    plain = member(b"a\xe9.jpg", body)
    for form in ("%06o\0 ", "%06o \0", "%7o\0", "%07o\0", "%8o", " %05o \0"):
        yield TarCase(
            f"a checksum as {form!r}",
            checksum(plain[:512], form) + plain[512:] + END,
            [Found(b"a\xe9.jpg", body)],
        )
    yield TarCase(
        "a checksum of signed bytes",
        checksum(plain[:512], signed=True) + plain[512:] + END,
        [Found(b"a\xe9.jpg", body)],
    )
    yield TarCase(
        "members of no bytes, one byte, one block and one more",
        b"".join(member(b"%d.bin" % n, b"z" * n) for n in (0, 1, 511, 512, 513, 0)) + END,
        [Found(b"%d.bin" % n, b"z" * n) for n in (0, 1, 511, 512, 513, 0)],
    )


def _kinds() -> Iterable[TarCase]:
    body = b"payload"
    yield TarCase(
        "every kind of member",
        member(b"contiguous.jpg", body, b"7")
        + member(b"nul.jpg", body, b"\0")
        + header(b"soft", 0, b"2", link=b"nul.jpg")
        + header(b"chr", 0, b"3")
        + header(b"blk", 0, b"4")
        + header(b"dir/", 0, b"5")
        + header(b"old/", 0, b"\0")
        + header(b"fifo", 0, b"6")
        + member(b"vendor.jpg", body, b"A")
        + member(b"last.jpg", body)
        + END,
        [
            Found(b"contiguous.jpg", body),
            Found(b"nul.jpg", body),
            Found(b"soft", b"", LINK),
            Found(b"chr", b"", DEVICE),
            Found(b"blk", b"", DEVICE),
            Found(b"dir/", b"", DIRECTORY),
            Found(b"old/", b"", DIRECTORY),
            Found(b"fifo", b"", DEVICE),
            Found(b"vendor.jpg", body),
            Found(b"last.jpg", body),
        ],
    )
    yield TarCase(
        "an empty file whose name ends in a slash is a directory",
        member(b"dir/") + member(b"dir/a.jpg", body) + END,
        [Found(b"dir/", b"", DIRECTORY), Found(b"dir/a.jpg", body)],
        misread_by="tarfile",  # only if its type is NUL
    )
    yield TarCase(
        "links, directories and devices that claim a size have no payload",
        header(b"soft", 7, b"2", link=b"a.jpg")
        + header(b"dir/", 4096, b"5")
        + header(b"chr", 512, b"3")
        + member(b"a.jpg", body)
        + END,
        [
            Found(b"soft", b"", LINK),
            Found(b"dir/", b"", DIRECTORY),
            Found(b"chr", b"", DEVICE),
            Found(b"a.jpg", body),
        ],
        misread_by="GNU tar",  # it skips the size of a directory
    )
    yield TarCase(
        "old GNU sparse members, with and without map blocks of their own",
        old_gnu_sparse(b"few.bin", 3)
        + old_gnu_sparse(b"many.bin", 60)
        + member(b"a.jpg", body)
        + END,
        [Found(b"few.bin", None), Found(b"many.bin", None), Found(b"a.jpg", body)],
    )
    yield TarCase(
        "a volume label",
        header(b"my backup", 0, b"V", style="gnu") + member(b"a.jpg", body) + END,
        [Found(b"a.jpg", body)],
        {"volume_labels_dropped": 1},
    )


def _ends() -> Iterable[TarCase]:
    one, two = member(b"a.jpg", b"a" * 600), member(b"b.jpg", b"b")
    both = [Found(b"a.jpg", b"a" * 600), Found(b"b.jpg", b"b")]
    both_in_one = one + two + END
    none = {"missing_end": True, "blank": True}
    yield TarCase("no bytes at all", b"", [], none)
    yield TarCase("nothing but half an end marker", bytes(512), [], none)
    yield TarCase("nothing but the end", END, [])
    yield TarCase("nothing but padding", bytes(10240), [], {"blank": True})
    yield TarCase("no end marker", one + two, both, {"missing_end": True})
    yield TarCase("half an end marker", one + two + bytes(512), both, {"missing_end": True})
    yield TarCase("an end marker cut short", one + two + bytes(700), both, {"missing_end": True})
    yield TarCase("padding after the end", (one + two).ljust(20 * 512, b"\0"), both)
    yield TarCase(
        "zeros after the end that are no padding",
        one + two + bytes(20 * 512),
        both,
        {"unexplained_zeros": 18 * 512},
    )
    yield TarCase(
        "padding of no whole block", one + two + END + bytes(77), both, {"unexplained_zeros": 77}
    )
    yield TarCase(
        "data after the end",
        one + two + END + bytes(700) + b"what was there before" + bytes(9),
        both,
        {"trailing_bytes": 30},
    )
    yield TarCase("a tar behind a tar", one + END + two + END, both, {"concatenated": 1}, "both")
    yield TarCase(
        "padded tars, one behind the other",
        one.ljust(10240, b"\0") + two.ljust(10240, b"\0"),
        both,
        {"concatenated": 1},
    )
    yield TarCase(
        "a tar behind a tar without members",
        bytes(10240) + both_in_one,
        both,
        {"concatenated": 1},
    )
    yield TarCase(
        "a tar behind a hole",
        one + bytes(24 * 512) + two + END,
        both,
        {"concatenated": 1, "unexplained_zeros": 22 * 512},
    )
    yield TarCase(
        "a lone zero block between members",
        one + bytes(512) + two + END,
        both,
        {"lone_zero_blocks": 1},
    )


def _pax() -> Iterable[TarCase]:
    body = b"payload"
    times = {b"mtime": b"1700000000.123456789", b"atime": b"1.5", b"ctime": b"2"}
    yield TarCase(
        "pax headers with times",
        b"".join(
            pax(dict(list(times.items())[: 1 + i % 3])) + member(b"%d.jpg" % i, body)
            for i in range(9)
        )
        + END,
        [Found(b"%d.jpg" % i, body) for i in range(9)],
    )
    yield TarCase(
        "pax paths, short, long, not ASCII, not UTF-8, and among other records",
        b"".join(
            pax({b"mtime": b"1.5", b"path": name, **extra}) + member(b"short", body)
            for name, extra in (
                (b"p.jpg", {}),
                (LONG, {}),
                (HUGE, {}),
                ("größe/日本.jpg".encode(), {}),
                (TORN, {b"hdrcharset": b"BINARY"}),
                (LONG, {b"SCHILY.xattr.user.label": b"cat\nline=2", b"comment": b"c" * 3000}),
            )
        )
        + END,
        [
            Found(name, body)
            for name in (b"p.jpg", LONG, HUGE, "größe/日本.jpg".encode(), TORN, LONG)
        ],
    )
    yield TarCase(
        "a pax size counts, not the header's",
        pax({b"size": b"1500"}) + header(b"a.jpg", 0) + b"s" * 1500 + bytes(36)
        + pax({b"size": b"5"}) + header(b"b.jpg", 7) + b"five5" + bytes(507) + END,
        [Found(b"a.jpg", b"s" * 1500), Found(b"b.jpg", b"five5")],
    )  # fmt: skip
    yield TarCase(
        "Solaris' pax header, pax link target, pax and long name that agree",
        pax({b"path": LONG}, b"X") + member(b"short", body)
        + pax({b"linkpath": HUGE}) + header(b"soft", 0, b"2", link=b"short")
        + gnu_long(LONG) + pax({b"path": LONG, b"mtime": b"1.5"}) + member(b"short", body)
        + END,
        [Found(LONG, body), Found(b"soft", b"", LINK), Found(LONG, body)],
    )  # fmt: skip
    sparse_map = b"1\n4096\n3\n".ljust(512, b"\0") + b"abc"
    yield TarCase(
        "pax sparse members go by their real name",
        pax(
            {
                b"GNU.sparse.major": b"1",
                b"GNU.sparse.minor": b"0",
                b"GNU.sparse.name": b"real/name.bin",
                b"GNU.sparse.realsize": b"4099",
            }
        )
        + member(b"GNUSparseFile.1/name.bin", sparse_map)
        + member(b"a.jpg", body)
        + END,
        [Found(b"real/name.bin", None), Found(b"a.jpg", body)],
    )


def _links() -> Iterable[TarCase]:
    big, new = b"shared payload" * 100, b"another"
    yield TarCase(
        "hard links, to before, to after, through others, in other spellings",
        header(b"early.jpg", 0, b"1", link=b"dir/a.jpg")
        + member(b"./dir/a.jpg", big)
        + header(b"late.jpg", 0, b"1", link=b"/dir//a.jpg")
        + header(b"chain.jpg", 99, b"1", link=b"late.jpg")
        + header(b"forward.jpg", 0, b"1", link=b"last.jpg")
        + header(b"last.jpg", 0, b"1", link=b"./early.jpg")
        + member(b"empty.jpg")
        + header(b"nothing.jpg", 0, b"1", link=b"empty.jpg")
        + END,
        [
            Found(b"early.jpg", big),
            Found(b"./dir/a.jpg", big),
            Found(b"late.jpg", big),
            Found(b"chain.jpg", big),
            Found(b"forward.jpg", big),
            Found(b"last.jpg", big),
            Found(b"empty.jpg"),
            Found(b"nothing.jpg"),
        ],
        {"hardlinks_resolved": 6},
    )
    yield TarCase(
        "a hard link means the member of that name before it",
        member(b"a.jpg", big)
        + header(b"first", 0, b"1", link=b"a.jpg")
        + member(b"a.jpg", new)
        + header(b"second", 0, b"1", link=b"a.jpg")
        + END,
        [Found(b"a.jpg", big), Found(b"first", big), Found(b"a.jpg", new), Found(b"second", new)],
        {"hardlinks_resolved": 2},
    )
    yield TarCase(
        "hard links with long names and targets, and with pax headers",
        gnu_long(HUGE) + member(HUGE[:100], big, style="gnu")
        + gnu_long(HUGE, b"K") + gnu_long(LONG)
        + header(LONG[:100], 0, b"1", link=HUGE[:100], style="gnu")
        + pax({b"path": b"x" + LONG, b"linkpath": LONG, b"mtime": b"7.5"})
        + header(b"short", 0, b"1", link=b"short") + END,
        [Found(HUGE, big), Found(LONG, big), Found(b"x" + LONG, big)],
        {"hardlinks_resolved": 2},
    )  # fmt: skip


def _globals() -> Iterable[TarCase]:
    body = b"payload"
    yield TarCase(
        "a global comment, as git writes it, is dropped",
        pax({b"comment": b"0" * 40}, b"g") + member(b"a.jpg", body) + END,
        [Found(b"a.jpg", body)],
        {"global_headers_dropped": 1},
    )
    yield TarCase(
        "global headers that matter are folded into the members they govern",
        member(b"free.jpg", body)
        + pax({b"mtime": b"12.5", b"uname": b"someone", b"comment": b"c"}, b"g")
        + member(b"a.jpg", body)
        + pax({b"mtime": b"99.5"})
        + member(b"own.jpg", body)
        + gnu_long(LONG)
        + member(b"short", body, style="gnu")
        + header(b"hard", 0, b"1", link=b"a.jpg")
        + pax({b"mtime": b"13.5", b"uname": b""}, b"g")
        + member(b"b.jpg", body)
        + pax({b"mtime": b""}, b"g")
        + member(b"c.jpg", body)
        + END,
        [
            Found(b"free.jpg", body),
            Found(b"a.jpg", body),
            Found(b"own.jpg", body),
            Found(LONG, body),
            Found(b"hard", body),
            Found(b"b.jpg", body),
            Found(b"c.jpg", body),
        ],
        {"global_headers_folded": 3, "hardlinks_resolved": 1},
    )
