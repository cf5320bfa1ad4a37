"""Strategies for whole jobs: odd shards, and specs of every kind that go with them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from tests.support.datasets import END, FORMATS, Member, Shard
from tests.support.inline_runtime import Moved

KEYS = ("a", "b", "a-1", "a1", "a10", "a02", "d/a", "d.1/a", "dir.d/b", "\udcff", "z", "l" * 97)
LONG_KEYS = ("/".join(["directory"] * 14), "/".join(["d" * 60] * 6))
EXTENSIONS = ("jpg", "cls", "tar.gz", "", "txt", "JPG")
NAMELESS = ("README", "a", "a-1", "README-1", ".hidden", "d/.hidden.jpg", "..x.jpg")
RANGE_BUFFER_BYTES_MIN = 64 << 10
SIZES = (0, 0, 1, 7, 511, 512, 513, 1500, 4000)
ENDS = (END, END, END, END, b"", bytes(512), bytes(10240), END + b"after the end")
CORRUPT_END = b"no header" * 60


@st.composite
def files(draw: st.DrawFn) -> Member:
    sort = draw(st.sampled_from(["member"] * 7 + ["plain"] * 7 + ["nameless", "long"]))
    form = draw(st.sampled_from(sorted(FORMATS)))
    if sort == "nameless":
        name = draw(st.sampled_from(NAMELESS))
    elif sort == "plain":
        name = f"{draw(st.integers(0, 60))}.{draw(st.sampled_from(['jpg', 'cls']))}"
    else:
        extension = draw(st.sampled_from(EXTENSIONS))
        name = draw(st.sampled_from(LONG_KEYS if sort == "long" else KEYS)) + f".{extension}"
    if form == "ustar" and len(name.encode("utf-8", "surrogateescape")) > 100:
        form = "gnu"
    if name.endswith(".cls"):
        number = draw(st.sampled_from(["-3", "0", "7", "10", "007", "12"]))
        return Member(name, f" {number}\n".encode(), form=form)
    return Member(name, b"x" * draw(st.sampled_from(SIZES)), form=form)


SPECIAL = st.sampled_from(
    [
        Member("d", kind="directory"),
        Member("d.1", kind="directory", form="gnu"),
        Member("pipe", kind="fifo"),
        Member("pipe.jpg", kind="fifo", form="gnu"),
        Member("a.link", kind="symlink", target="a.jpg"),
        Member("link", kind="symlink", target="b.jpg"),
    ]
)


@st.composite
def shard(draw: st.DrawFn, corrupt: bool) -> Shard:
    least = draw(st.sampled_from([0, 6, 12]))
    each_member = st.one_of(*[files()] * 8, SPECIAL)
    found = draw(st.lists(each_member, min_size=least, max_size=least + 4))
    own = [replace(each, payload=_unlike(each, at)) for at, each in enumerate(found)]
    targets = sorted({each.name for each in own if each.kind == "file"})
    if targets and draw(st.integers(0, 4)) == 4:
        target = draw(st.sampled_from(targets))
        link = Member(
            draw(st.sampled_from(["hard.jpg", "a.hard", "hard"])),
            kind="hardlink",
            target=target,
            form="gnu",
        )
        own.insert(draw(st.integers(0, len(own))), link)
    end = CORRUPT_END if corrupt and draw(st.integers(0, 9)) == 9 else draw(st.sampled_from(ENDS))
    return Shard(tuple(own), end)


def _unlike(member: Member, at: int) -> bytes:
    """Its payload made unlike all others of the shard, as far as its length lets it."""
    if member.name.endswith(".cls"):
        return member.payload
    size = len(member.payload)
    return (b"%02d%s" % (at, member.name.encode("utf-8", "replace")) * (size // 3 + 1))[:size]


@st.composite
def shards(draw: st.DrawFn, *, corrupt: bool = True) -> dict[str, Shard]:
    """Up to four shards with all oddities of members, in input order."""
    least = draw(st.sampled_from([1, 3]))
    found = draw(st.lists(shard(corrupt), min_size=least, max_size=4))
    marked = {}
    for ordinal, each in enumerate(found):
        members = tuple(
            replace(m, payload=bytes([65 + ordinal]) + m.payload[1:])
            if m.payload and not m.name.endswith(".cls")
            else m
            for m in each.members
        )
        marked[f"in-{ordinal}.tar"] = Shard(members, each.end)
    return marked


@st.composite
def algorithms(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(["none", "alphanumeric", "shuffle", "md5", "content"]))
    algorithm: dict[str, Any] = {"kind": kind}
    if kind == "shuffle":
        return algorithm | {"seed": draw(st.sampled_from([0, 42, "seed"]))}
    if kind == "alphanumeric":
        algorithm["natural"] = draw(st.booleans())
    if kind == "content":
        algorithm["extension"] = ".cls"
        algorithm["content_key_type"] = draw(st.sampled_from(["int", "float", "string"]))
        # abort alone would end nearly every job
        algorithm["content_key_missing"] = draw(
            st.sampled_from(["first", "last", "first", "last", "abort"])
        )
    if kind != "none":
        algorithm["decreasing"] = draw(st.booleans())
    return algorithm


KEY_MAP = {"x-%d": ["a", "b.jpg"], "y-{0..9}": ["^a1", "d/"], "w-%d": ["README"]}


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    """A spec of any kind: all algorithms, cuts and reactions; now and then an external key map."""
    spec: dict[str, Any] = {"input_bck": "in", "output_bck": "out", "output_format": "o-%d"}
    spec["algorithm"] = draw(algorithms())
    config = {
        "duplicate_keys": draw(
            st.sampled_from(["ignore", "warn", "warn", "drop", "drop", *["rename"] * 4, "abort"])
        ),
        "duplicated_records": draw(st.sampled_from(["warn", "ignore", None, None, None, "abort"])),
        "incomplete_shards": draw(st.sampled_from([*["warn", "ignore"] * 4, "abort"])),
        "corrupt_shards": draw(st.sampled_from(["skip"] * 5 + ["abort"])),
        "stray_members": draw(st.sampled_from(["keep", "keep", "keep", "drop", "drop", "abort"])),
    }
    cut = draw(st.sampled_from(["size", "records", "count", "auto"]))
    if draw(st.integers(0, 4)) == 4:
        spec["ekm"] = KEY_MAP
        config["ekm_missing_key"] = draw(
            st.sampled_from(["warn", "ignore", "warn", "ignore", "abort"])
        )
        if config["ekm_missing_key"] != "abort" and draw(st.booleans()):
            spec["ekm_default"] = draw(st.sampled_from(["v-%d", "w-%d"]))
        del spec["output_format"]
        cut = draw(st.sampled_from(["size", "records"]))
    spec["Config"] = config
    if cut == "size":
        spec["output_shard_size"] = draw(st.sampled_from([1, 600, 3000, 10**6]))
    elif cut == "records":
        spec["output_shard_records"] = draw(st.integers(1, 5))
    elif cut == "count":
        spec["output_shard_count"] = draw(st.integers(1, 6))
    else:
        spec["output_format"] = f"o-{{0..{draw(st.integers(0, 5))}}}"
    for limit in ("extract_concurrency_max_limit", "create_concurrency_max_limit"):
        spec[limit] = draw(st.sampled_from([0, 0, 1, 2]))
    if draw(st.integers(0, 3)) == 3:
        spec["verify"] = "content"
    return spec


@st.composite
def movements(draw: st.DrawFn) -> Moved:
    """Any way of moving payload, with buffers down to the smallest that hold a member's headers, on
    one node or several, some of which are lost."""
    nodes = draw(st.sampled_from([1, 1, 2, 3]))
    movement = draw(st.sampled_from(["map", "range", "spill", "spill", "spill"]))
    # The movement range reads whole pages, so its buffers hold several.
    smallest = [3072, 4096, 8192] if movement != "range" else [RANGE_BUFFER_BYTES_MIN]
    return Moved(
        nodes=nodes,
        losses=draw(st.integers(0, 3)) if nodes > 1 else 0,
        movement=movement,
        workers=draw(st.integers(1, 4)),
        partitions=draw(st.sampled_from([1, 2, 3, 5, 16])),
        buffer_bytes=draw(st.sampled_from([*smallest, 1 << 20])),
        order_seed=draw(st.integers(0, 9)),
        hops=draw(st.booleans()) if movement == "range" else True,
    )
