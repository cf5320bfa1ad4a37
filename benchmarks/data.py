"""Makes seeded tar shards of incompressible records, as fast as the disk writes them.

A record has two members: ``.jpg`` (random bytes) and ``.cls`` (three digits). A shard is one array
of random 512-byte blocks, with headers, padding and an end laid over it. NumPy's raw bit streams
never change between releases, so a seed means the same bytes on every machine."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "PROFILES",
    "Data",
    "DataSet",
    "NoRoomError",
    "Profile",
    "Request",
    "make_data",
    "make_shard",
    "read_through",
    "require_room",
]

# Raised when a request gives other bytes than before: then older data is made again.
MAKER_VERSION = 1
BLOCK_BYTES = 512
# GNU tar and Python's tarfile pad an archive to a multiple of 20 blocks.
ARCHIVE_BLOCKS = 20
CLASS_DIGITS = 3
MTIME_SECONDS = 1_700_000_000
READ_BYTES = 1 << 20

Blocks = NDArray[np.uint8]


class Data(Protocol):
    """Shards on disk, in the directory ``root/shards``."""

    @property
    def root(self) -> Path:
        """The directory of the data. Outputs are put beside the shards in it."""

    @property
    def profile(self) -> str:
        """The name of its kind of record."""

    @property
    def suffix(self) -> str:
        """The suffix of each shard's name, such as ``.tar``."""

    @property
    def total_bytes(self) -> int:
        """The size of the data. All rates count these bytes."""

    @property
    def member_bytes_min(self) -> int:
        """The least size of a complete result."""

    @property
    def paths(self) -> list[Path]:
        """The shard files, in order."""

    @property
    def template(self) -> str:
        """The input template of a spec that takes all shards, without the suffix."""


class NoRoomError(Exception):
    """The file system has not enough free bytes for a run."""


@dataclass(frozen=True, slots=True)
class Profile:
    """One kind of record; the payload of its ``.jpg`` is uniform between min and max, in bytes."""

    name: str
    payload_bytes_min: int
    payload_bytes_max: int

    @property
    def record_bytes_mean(self) -> float:
        """Mean bytes of a record in the tar: two headers, padded payloads."""
        sizes = np.arange(self.payload_bytes_min, self.payload_bytes_max + 1)
        return float(np.mean(-(-sizes // BLOCK_BYTES)) + 3) * BLOCK_BYTES


PROFILES = {
    profile.name: profile
    for profile in (
        Profile("100k", 90_000, 110_000),
        Profile("1k", 768, 1_280),
        Profile("4m", 3_800_000, 4_200_000),
        Profile("32k", 28_000, 36_000),
    )
}


@dataclass(frozen=True, slots=True)
class Request:
    """A request for data: about ``total_bytes`` of tar files in ``shards`` shards."""

    profile: str
    total_bytes: int
    shards: int
    seed: int = 1

    @property
    def directory_name(self) -> str:
        """A name that tells data of different requests apart."""
        return f"{self.profile}-{self.total_bytes // 1_000_000}mb-{self.shards}-s{self.seed}"

    @property
    def records_per_shard(self) -> int:
        """Every shard has the same number of records, at least one."""
        mean = PROFILES[self.profile].record_bytes_mean
        return max(1, round(self.total_bytes / self.shards / mean))


@dataclass(frozen=True, slots=True)
class DataSet:
    """Data on disk: ``root/shards/shard-00000.tar`` and so on."""

    root: Path
    request: Request
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    suffix: ClassVar[str] = ".tar"

    @property
    def profile(self) -> str:
        """The name of its kind of record."""
        return self.request.profile

    @property
    def total_bytes(self) -> int:
        """The size of all shard files. All rates count these bytes."""
        return sum(self.sizes)

    @property
    def records(self) -> int:
        """Records in all shards."""
        return self.request.records_per_shard * len(self.names)

    @property
    def member_bytes_min(self) -> int:
        """The least size of a complete result: that of the shards without their ends."""
        return self.total_bytes - len(self.names) * ARCHIVE_BLOCKS * BLOCK_BYTES * 2

    @property
    def paths(self) -> list[Path]:
        """The shard files, in order."""
        return [self.root / "shards" / name for name in self.names]

    @property
    def template(self) -> str:
        """The input template of a spec that takes all shards."""
        return f"shard-{{{0:05d}..{len(self.names) - 1:05d}}}"


def make_data(directory: Path, request: Request) -> DataSet:
    """The data of ``request`` under ``directory``. Complete data from an earlier call is reused.

    ``data.json`` is written last, so data without it is remade.
    """
    root = directory / request.directory_name
    found = _read_stamp(root, request)
    if found is not None:
        return found
    shutil.rmtree(root, ignore_errors=True)
    require_room(directory, request.total_bytes)
    (root / "shards").mkdir(parents=True)
    names = [f"shard-{shard:05d}.tar" for shard in range(request.shards)]
    sizes = []
    for shard, name in enumerate(names):
        blocks = make_shard(request, shard)
        (root / "shards" / name).write_bytes(blocks.data)
        sizes.append(blocks.nbytes)
    stamp = {"maker": MAKER_VERSION, "request": asdict(request), "names": names, "sizes": sizes}
    (root / "data.json").write_text(json.dumps(stamp))
    return DataSet(root, request, tuple(names), tuple(sizes))


def _read_stamp(root: Path, request: Request) -> DataSet | None:
    try:
        stamp: dict[str, Any] = json.loads((root / "data.json").read_text())
    except (FileNotFoundError, ValueError):
        return None
    if stamp.get("maker") != MAKER_VERSION or stamp.get("request") != asdict(request):
        return None
    data = DataSet(root, request, tuple(stamp["names"]), tuple(stamp["sizes"]))
    on_disk = [path.stat().st_size if path.is_file() else -1 for path in data.paths]
    return data if on_disk == list(data.sizes) else None


def make_shard(request: Request, shard: int) -> Blocks:
    """One shard's bytes as an array of shape ``(blocks, 512)``."""
    profile = PROFILES[request.profile]
    records = request.records_per_shard
    stream = np.random.SFC64(
        np.random.SeedSequence([request.seed, shard, *profile.name.encode("ascii")])
    )
    span = profile.payload_bytes_max - profile.payload_bytes_min + 1
    drawn = stream.random_raw(2 * records)
    sizes = (profile.payload_bytes_min + drawn[:records] % span).astype(np.int64)
    classes = (drawn[records:] % 10**CLASS_DIGITS).astype(np.int64)

    payload_blocks = -(-sizes // BLOCK_BYTES)
    ends = np.cumsum(payload_blocks + 3)
    first = ends - payload_blocks - 3
    whole = -(-(int(ends[-1]) + 2) // ARCHIVE_BLOCKS) * ARCHIVE_BLOCKS
    words = stream.random_raw(whole * (BLOCK_BYTES // 8)).astype("<u8", copy=False)
    blocks = words.view(np.uint8).reshape(-1, BLOCK_BYTES)

    keys = np.full((records, 13), ord("-"), np.uint8)
    keys[:, :5] = _digits(np.full(records, shard), 5, 10)
    keys[:, 6:] = _digits(np.arange(records), 7, 10)
    used = sizes - (payload_blocks - 1) * BLOCK_BYTES
    blocks[first] = _headers(keys, b".jpg", sizes)
    blocks[first + payload_blocks] *= np.arange(BLOCK_BYTES) < used[:, None]
    blocks[ends - 2] = _headers(keys, b".cls", np.full(records, CLASS_DIGITS))
    blocks[ends - 1] = 0
    blocks[ends - 1, :CLASS_DIGITS] = _digits(classes, CLASS_DIGITS, 10)
    blocks[int(ends[-1]) :] = 0
    return blocks


def _digits(values: NDArray[np.int64], width: int, base: int) -> Blocks:
    """ASCII digits of each value, shape ``(n, width)``, zero-filled."""
    powers = base ** np.arange(width - 1, -1, -1, dtype=np.int64)
    return (values[:, None] // powers % base + ord("0")).astype(np.uint8)


def _headers(keys: Blocks, extension: bytes, sizes: NDArray[np.int64]) -> Blocks:
    """ustar headers of regular files named key + extension, shape ``(n, 512)``."""
    head = bytearray(BLOCK_BYTES)
    head[100:124] = b"0000644\x000000000\x000000000\x00"
    head[136:148] = b"%011o\x00" % MTIME_SECONDS
    head[148:157] = b" " * 8 + b"0"
    head[257:265] = b"ustar\x0000"
    width = keys.shape[1]
    head[width : width + len(extension)] = extension
    headers = np.tile(np.frombuffer(bytes(head), np.uint8), (len(sizes), 1))
    headers[:, :width] = keys
    headers[:, 124:135] = _digits(sizes, 11, 8)
    headers[:, 148:154] = _digits(headers.sum(axis=1, dtype=np.int64), 6, 8)
    headers[:, 154] = 0
    return headers


def read_through(data: Data) -> None:
    """Read every shard once, so that it is in the page cache for the next run."""
    buffer = bytearray(READ_BYTES)
    for path in data.paths:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def require_room(directory: Path, wanted_bytes: int) -> None:
    """Raise `NoRoomError` unless ``wanted_bytes`` are free where ``directory`` is."""
    directory.mkdir(parents=True, exist_ok=True)
    free_bytes = shutil.disk_usage(directory).free
    if free_bytes < wanted_bytes:
        raise NoRoomError(
            f"{directory} has {free_bytes / 1e9:.1f} GB free and a run needs "
            f"{wanted_bytes / 1e9:.1f} GB; choose another --data or a smaller --total"
        )
