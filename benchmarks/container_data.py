"""Makes the same seeded records in several containers, and keeps them; ``KINDS`` lists the records.

Rates of container suites count the bytes of payload, without headers, padding and names: so the
same records in two containers are the same work. dsort converts tars to TFRecord, MDS and zip; the
libraries of the formats write all others."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain, count, islice
from pathlib import Path
from typing import IO, Any

import lz4.frame
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from isal import igzip

from benchmarks.data import require_room

__all__ = ["KINDS", "ContainerData", "ContainerRequest", "make_containers"]

# Raised when a request gives other bytes than before: then older data is made again.
MAKER_VERSION = 1
WORDS = 4_000
WORD_BYTES = 12
HALF_RECORD_BYTES = 100_000
GROUP_ROWS_OF_FILES, GROUP_ROWS_OF_TEXT = 100, 10_000
"""The number of rows in a row group, as in files of Hugging Face."""
PICTURES = {"features": {"id": {"dtype": "string", "_type": "Value"}, "image": {"_type": "Image"}}}
# A compressed output may have this share of its input: another level or library may do better.
ENCODED_SHARE_MIN = 0.8

Record = tuple[str, dict[str, bytes]]
"""The key, and payload by extension."""


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """``total_bytes`` of payload, of a kind of record, in ``shards`` files ending in ``suffix``."""

    kind: str
    suffix: str
    total_bytes: int
    shards: int

    @property
    def directory_name(self) -> str:
        """A name that tells data of different requests apart."""
        return f"{self.kind}{self.suffix}-{self.total_bytes // 1_000_000}mb-{self.shards}"


@dataclass(frozen=True, slots=True)
class ContainerData:
    """Shards ``root/shards/s-0`` and so on; see `benchmarks.data.Data`."""

    root: Path
    profile: str
    suffix: str
    shards: int
    total_bytes: int
    member_bytes_min: int

    @property
    def paths(self) -> list[Path]:
        """The shard files, in order."""
        return [self.root / "shards" / f"s-{n}{self.suffix}" for n in range(self.shards)]

    @property
    def template(self) -> str:
        """The input template of a spec that takes all shards, without the suffix."""
        return f"s-{{0..{self.shards - 1}}}"


def pictures(source: random.Random, shard: int) -> Iterator[Record]:
    """Records of kind ``100k``, without end."""
    return _files(source, shard, 90_000, 110_000)


def small_files(source: random.Random, shard: int) -> Iterator[Record]:
    """Records of kind ``3k-files``, without end."""
    return _files(source, shard, 2_000, 4_000)


def _files(source: random.Random, shard: int, least: int, most: int) -> Iterator[Record]:
    for number in count():
        yield f"{shard}-{number:07d}", {"jpg": source.randbytes(source.randint(least, most))}


def lines(source: random.Random, shard: int) -> Iterator[Record]:
    """Records of kind ``3k``, without end."""
    words = _words(source)
    for number in count():
        key = f"{shard}-{number:07d}"
        text = b" ".join(source.choices(words, k=source.randint(150, 350)))
        yield key, {"json": b'{"id": "%s", "text": "%s"}' % (key.encode(), text)}


def halves(source: random.Random, shard: int) -> Iterator[Record]:
    """Records of kind ``half``, without end."""
    words = _words(source)
    for number in count():
        text = b" ".join(source.choices(words, k=HALF_RECORD_BYTES // WORD_BYTES))
        yield f"{shard}-{number:07d}", {"txt": text, "jpg": source.randbytes(len(text))}


def labelled(source: random.Random, shard: int) -> Iterator[Record]:
    """Records of kind ``labelled-100k``, without end."""
    return _with_labels(_files(source, shard, 90_000, 110_000))


def labelled_small(source: random.Random, shard: int) -> Iterator[Record]:
    """Records of kind ``labelled-3k``, without end."""
    return _with_labels(_files(source, shard, 2_000, 4_000))


def _with_labels(records: Iterator[Record]) -> Iterator[Record]:
    for key, payloads in records:
        yield key, payloads | {"json": b'{"id": "%s", "text": "%s"}' % (key.encode(), b"x" * 150)}


def classed(source: random.Random, shard: int) -> Iterator[Record]:
    """Records of kind ``classed-100k``, without end."""
    return _with_classes(source, _files(source, shard, 90_000, 110_000))


def classed_small(source: random.Random, shard: int) -> Iterator[Record]:
    """Records of kind ``classed-3k``, without end."""
    return _with_classes(source, _files(source, shard, 2_000, 4_000))


def _with_classes(source: random.Random, records: Iterator[Record]) -> Iterator[Record]:
    for key, payloads in records:
        said = (key.encode(), source.randrange(100), source.randrange(1, 2048))
        yield key, payloads | {"json": b'{"id": "%s", "label": "c%02d", "length": %d}' % said}


def _words(source: random.Random) -> list[bytes]:
    return [source.randbytes(source.randrange(2, 9)).hex().encode() for _ in range(WORDS)]


KINDS: dict[str, Callable[[random.Random, int], Iterator[Record]]] = {
    "100k": pictures,
    "3k": lines,
    "3k-files": small_files,
    "half": halves,
    "labelled-100k": labelled,
    "labelled-3k": labelled_small,
    "classed-100k": classed,
    "classed-3k": classed_small,
}
"""Makers of records: ``100k`` 90 to 110 KB of random bytes, as a picture is; ``3k`` a JSON line of
3 KB; ``3k-files`` 2 to 4 KB of random bytes; ``half`` 100 KB of words, which shrink, and as much of
random bytes; ``labelled`` and ``classed`` the same as files, each with some 200 bytes of JSON, or
with JSON of a class and a length."""


def _records(request: ContainerRequest, shard: int) -> Iterator[Record]:
    """The records of a shard: the same in all containers."""
    source = random.Random(f"{request.kind} {shard}")
    left = request.total_bytes // request.shards
    for key, payloads in KINDS[request.kind](source, shard):
        yield key, payloads
        left -= sum(map(len, payloads.values()))
        if left <= 0:
            return


def make_containers(directory: Path, request: ContainerRequest) -> ContainerData:
    """The data of ``request`` under ``directory``. Complete data from an earlier call is reused.

    ``data.json`` is written last, so data without it is remade.
    """
    root = directory / request.directory_name
    found = _read_stamp(root, request)
    if found is not None:
        return found
    print(f"data {request.directory_name}", file=sys.stderr, flush=True)
    require_room(directory, 2 * request.total_bytes)
    if request.suffix in CONVERTED:
        payload_bytes = _convert(directory, request, root)
    else:
        payload_bytes = _write(request, root)
    paths = [root / "shards" / f"s-{n}{request.suffix}" for n in range(request.shards)]
    file_bytes = sum(path.stat().st_size for path in paths)
    least = payload_bytes if file_bytes >= payload_bytes else int(ENCODED_SHARE_MIN * file_bytes)
    stamp = _stamp(request) | {
        "payload_bytes": payload_bytes,
        "member_bytes_min": least,
        "file_bytes": file_bytes,
    }
    (root / "data.json").write_text(json.dumps(stamp))
    return _data_of(root, request, stamp)


def _stamp(request: ContainerRequest) -> dict[str, Any]:
    return {"maker": MAKER_VERSION, "request": asdict(request)}


def _data_of(root: Path, request: ContainerRequest, stamp: dict[str, Any]) -> ContainerData:
    return ContainerData(
        root,
        request.kind,
        request.suffix,
        request.shards,
        stamp["payload_bytes"],
        stamp["member_bytes_min"],
    )


def _read_stamp(root: Path, request: ContainerRequest) -> ContainerData | None:
    try:
        stamp: dict[str, Any] = json.loads((root / "data.json").read_text())
    except (FileNotFoundError, ValueError):
        return None
    if any(stamp.get(name) != value for name, value in _stamp(request).items()):
        return None
    data = _data_of(root, request, stamp)
    stored = sum(path.stat().st_size for path in data.paths if path.is_file())
    return data if stored == stamp["file_bytes"] else None


def _convert(directory: Path, request: ContainerRequest, root: Path) -> int:
    """Write the shards by converting tars of the same records with dsort. Returns the payload
    bytes."""
    tars = make_containers(
        directory, ContainerRequest(request.kind, ".tar", request.total_bytes, request.shards)
    )
    spec = {
        "input_bck": "shards",
        "output_bck": "converted",
        "input_format": {"template": tars.template},
        "input_extension": ".tar",
        "output_extension": request.suffix,
        "output_format": "s-%d",
        "output_shard_count": request.shards,
        "algorithm": {"kind": "shuffle", "seed": "2"},
    }
    shutil.rmtree(root, ignore_errors=True)
    shutil.rmtree(tars.root / "converted", ignore_errors=True)
    line = [sys.executable, "-m", "dsort", "start", "-f", "-", "--root", str(tars.root)]
    subprocess.run(
        [*line, "--progress", "none"],
        input=json.dumps(spec).encode(),
        stdout=subprocess.DEVNULL,
        check=True,
    )
    root.mkdir()
    shutil.move(tars.root / "converted", root / "shards")
    return tars.total_bytes


def _write(request: ContainerRequest, root: Path) -> int:
    """Write the shards. Returns the payload bytes."""
    shutil.rmtree(root, ignore_errors=True)
    (root / "shards").mkdir(parents=True)
    payload_bytes = 0
    for shard in range(request.shards):

        def counted(shard: int = shard) -> Iterator[Record]:
            nonlocal payload_bytes
            for key, payloads in _records(request, shard):
                payload_bytes += sum(map(len, payloads.values()))
                yield key, payloads

        WRITERS[request.suffix](root / "shards" / f"s-{shard}{request.suffix}", counted())
    return payload_bytes


def _tar(file: IO[bytes], records: Iterable[Record]) -> None:
    for key, payloads in records:
        for extension, payload in payloads.items():
            member = tarfile.TarInfo(f"{key}.{extension}")
            member.size = len(payload)
            file.write(member.tobuf(tarfile.USTAR_FORMAT))
            file.write(payload)
            file.write(bytes(-len(payload) % tarfile.BLOCKSIZE))
    file.write(bytes(2 * tarfile.BLOCKSIZE))


def _plain_tar(path: Path, records: Iterable[Record]) -> None:
    with path.open("wb") as file:
        _tar(file, records)


def _gzip_tar(path: Path, records: Iterable[Record]) -> None:
    with igzip.open(path, "wb") as file:  # type: ignore[no-untyped-call]
        _tar(file, records)


def _zstd_tar(path: Path, records: Iterable[Record]) -> None:
    with zstandard.open(path, "wb") as file:
        _tar(file, records)


def _lz4_tar(path: Path, records: Iterable[Record]) -> None:
    with lz4.frame.open(path, "wb") as file:
        _tar(file, records)


def _jsonl(path: Path, records: Iterable[Record]) -> None:
    with path.open("wb") as file:
        for _, payloads in records:
            file.write(payloads["json"] + b"\n")


def _parquet(path: Path, records: Iterable[Record]) -> None:
    """Files as Hugging Face keeps pictures, not compressed; lines as two columns of text."""
    left = iter(records)
    first = next(left)
    left = chain([first], left)
    is_files = "jpg" in first[1]
    schema = FILES_SCHEMA if is_files else TEXT_SCHEMA
    group_rows = GROUP_ROWS_OF_FILES if is_files else GROUP_ROWS_OF_TEXT
    plain = {"image.bytes": "none", "image.path": "none"} if is_files else {"text": "snappy"}
    with pq.ParquetWriter(
        path,
        schema,
        compression={"id": "snappy", **plain},
        use_dictionary=["id"],
        write_page_index=True,
    ) as writer:
        while group := list(islice(left, group_rows)):
            if is_files:
                values = [
                    {"id": key, "image": {"bytes": each["jpg"], "path": f"{key}.jpg"}}
                    for key, each in group
                ]
            else:
                values = [json.loads(each["json"]) for _, each in group]
            writer.write_table(pa.Table.from_pylist(values, schema))


CONVERTED = (".mds", ".tfrecord", ".zip")
FILE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
FILES_SCHEMA = pa.schema(
    [("id", pa.string()), ("image", FILE)],
    metadata={"huggingface": json.dumps({"info": PICTURES})},
)
TEXT_SCHEMA = pa.schema([("id", pa.string()), ("text", pa.string())])
WRITERS: dict[str, Callable[[Path, Iterable[Record]], None]] = {
    ".jsonl": _jsonl,
    ".parquet": _parquet,
    ".tar": _plain_tar,
    ".tar.lz4": _lz4_tar,
    ".tar.zst": _zstd_tar,
    ".tgz": _gzip_tar,
}
