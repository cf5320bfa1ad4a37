"""Small shards, made member by member, and the content of an output bucket after a job.

A member's bytes (headers, payload, padding) are known when it is made, so a test can say exactly
which bytes an output shard has to hold.
"""

from __future__ import annotations

import io
import json
import random
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

END = bytes(1024)
FORMATS: dict[str, Literal[0, 1, 2]] = {
    "ustar": tarfile.USTAR_FORMAT,
    "gnu": tarfile.GNU_FORMAT,
    "pax": tarfile.PAX_FORMAT,
}
_TYPES = {
    "file": tarfile.REGTYPE,
    "directory": tarfile.DIRTYPE,
    "symlink": tarfile.SYMTYPE,
    "hardlink": tarfile.LNKTYPE,
    "fifo": tarfile.FIFOTYPE,
}
MTIME = 1_700_000_000


@dataclass(frozen=True)
class Member:
    """A member to be put into a shard. ``target``: of a link. A pax member always has a pax header
    (its time has a fraction)."""

    name: str
    payload: bytes = b""
    kind: str = "file"
    target: str = ""
    form: str = "ustar"

    @property
    def raw(self) -> bytes:
        """Its headers, payload and padding."""
        info = tarfile.TarInfo(self.name)
        info.type, info.linkname, info.size = _TYPES[self.kind], self.target, len(self.payload)
        info.mtime = MTIME + 0.25 if self.form == "pax" else MTIME
        headers = info.tobuf(FORMATS[self.form], "utf-8", "surrogateescape")
        return headers + self.payload + bytes(-len(self.payload) % 512)

    def __repr__(self) -> str:
        end = f" -> {self.target}" if self.target else ""
        return f"<{self.kind} {self.name!r} {len(self.payload)} {self.form}{end}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))


@dataclass(frozen=True)
class Shard:
    """A shard to be made: its members, and the bytes after them."""

    members: tuple[Member, ...] = ()
    end: bytes = END

    @property
    def data(self) -> bytes:
        """The content of the file."""
        return b"".join(member.raw for member in self.members) + self.end

    def __repr__(self) -> str:
        return f"<{list(self.members)} and {len(self.end)} bytes>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))


@dataclass(frozen=True)
class Stored:
    """A member as ``tarfile`` reads it: ``raw`` are all of its bytes in the shard."""

    name: str
    payload: bytes
    kind: str
    raw: bytes = field(repr=False)

    @property
    def meaning(self) -> tuple[str, bytes, str]:
        """All but the raw bytes."""
        return self.name, self.payload, self.kind


def stored_bytes(members: Iterable[Member]) -> bytes:
    """The output shard that holds ``members`` unchanged."""
    return b"".join(member.raw for member in members) + END


def read_shard(data: bytes) -> list[Stored]:
    """The members of an output shard, read with ``tarfile``: nothing may be between or behind them
    but the end marker."""
    kinds = {code: kind for kind, code in _TYPES.items()}
    found = []
    at = 0
    with tarfile.open(
        fileobj=io.BytesIO(data), mode="r:", encoding="utf-8", errors="surrogateescape"
    ) as archive:
        for info in archive:
            assert info.offset == at, f"{at - info.offset} bytes before {info.name}"
            size = info.size if info.isreg() else 0
            at = info.offset_data + size + (-size % 512)
            payload = data[info.offset_data : info.offset_data + size]
            found.append(Stored(info.name, payload, kinds[info.type], data[info.offset : at]))
    assert data[at:] == END
    return found


def write_shards(directory: Path, shards: Mapping[str, Shard | bytes]) -> None:
    """Write each shard under its name in ``directory``."""
    for name, shard in shards.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(shard.data if isinstance(shard, Shard) else shard)


def small_dataset(
    seed: int | str,
    *,
    shards: int = 3,
    records: int = 12,
    extensions: Sequence[str] = ("jpg", "cls"),
    payload_bytes_max: int = 2000,
) -> dict[str, Shard]:
    """Shards ``in-0.tar``, ... of ordinary records with unique keys, in no particular order."""
    rng = random.Random(f"dataset {seed}")
    keys = [f"{number:05d}" for number in range(shards * records)]
    rng.shuffle(keys)
    made = {}
    for shard in range(shards):
        members = []
        for key in keys[shard * records : (shard + 1) * records]:
            for extension in extensions:
                size = rng.randrange(payload_bytes_max)
                payload = (
                    b"%d\n" % rng.randrange(100) if extension == "cls" else rng.randbytes(size)
                )
                members.append(Member(f"{key}.{extension}", payload))
        made[f"in-{shard}.tar"] = Shard(tuple(members))
    return made


def tree_of(directory: Path) -> dict[str, tuple[int, bytes]]:
    """Path → (mtime in ns, content) of every file below ``directory``; directories with a slash."""
    found = {}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.is_symlink():
            found[name] = (path.lstat().st_mtime_ns, bytes(path.readlink()))
        elif path.is_dir():
            found[f"{name}/"] = (0, b"")
        else:
            found[name] = (path.stat().st_mtime_ns, path.read_bytes())
    return found


def files_of(directory: Path, pattern: str = "**/*.tar") -> dict[str, bytes]:
    """Name → content of the shards in a bucket."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in sorted(directory.glob(pattern))
        if ".dsort" not in path.parts
    }


def payloads_in(bucket: Path) -> list[tuple[str, bytes]]:
    """The members of all shards, with their payloads, in order of the shards' numbers."""
    shards = files_of(bucket)
    return [
        (member.name, member.payload)
        for name in sorted(shards, key=lambda each: (len(each), each))
        for member in read_shard(shards[name])
    ]


def example_samples(prefix: str, shards: int, digits: int, records: int) -> dict[str, Shard]:
    """Inputs of the example specs, as ``specs/README.md`` describes them: shards of ``records``
    records, each with an image, a class, and (except every seventh) a score."""
    rng = random.Random(prefix)
    made = {}
    for shard in range(shards):
        members = []
        for number in range(records * shard, records * (shard + 1)):
            key = f"{number:06d}"
            members.append(Member(f"{key}.jpg", rng.randbytes(rng.randrange(3000, 9000))))
            members.append(Member(f"{key}.cls", b"%d\n" % rng.randrange(10)))
            if number % 7:
                score = {"meta": {"score": rng.random()}}
                members.append(Member(f"{key}.json", json.dumps(score).encode()))
        made[f"{prefix}{shard:0{digits}d}.tar"] = Shard(tuple(members))
    return made
