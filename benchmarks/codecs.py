"""Compressed shards: a shuffle of them beside what decoding, moving and encoding cost alone.

Run as ``python -m benchmarks.codecs --total 300000000``; one JSON object on stdout. Records are
half text, half random bytes. All figures are seconds of processor time, of this process and of
those that it starts, for they hold on a busy machine, too. ``ratio`` is the shuffle over the sum of
its parts; ``webdataset``: its own pipeline, on a share of the data.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dsort.containers.codecs.base import Codec
from dsort.containers.codecs.decoding import Decoding
from dsort.containers.registry import codec_of
from dsort.containers.tar.container import Tar
from dsort.data.entries import PlacedEntries
from dsort.workers.encoded import encoded_pieces

__all__ = ["main", "measure"]

SHARDS = 4
SUFFIXES = (".tgz", ".tar.zst", ".tar.lz4")
RECORD_BYTES = 100_000
STEP_BYTES = 1 << 20
WEBDATASET_SHARDS = 1
WEBDATASET = """
import random, sys, webdataset
records = webdataset.WebDataset(sys.argv[2:], shardshuffle=1, seed=1, empty_check=False)
with webdataset.ShardWriter(sys.argv[1] + "/out-%05d.tgz", maxsize=67108864, verbose=0) as writer:
    for record in records.shuffle(5000, rng=random.Random(1)):
        writer.write({k: v for k, v in record.items() if k == "__key__" or not k.startswith("__")})
"""


def cpu_seconds(work: Callable[[], object]) -> float:
    """What ``work`` takes of the processors, here and in processes that it starts and waits for."""
    before = _used()
    work()
    return _used() - before


def _used() -> float:
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(each.ru_utime + each.ru_stime for each in map(resource.getrusage, kinds))


def make_tars(directory: Path, total_bytes: int) -> None:
    """``SHARDS`` tars, half of whose payload shrinks."""
    source, tar = random.Random(1), Tar()
    words = [source.randbytes(source.randrange(2, 9)).hex().encode() for _ in range(4000)]
    for shard in range(SHARDS):
        with (directory / f"s-{shard}.tar").open("wb") as file:
            stored = number = 0
            while stored < total_bytes // SHARDS:
                text = b" ".join(source.choices(words, k=RECORD_BYTES // 24))
                for name, payload in (
                    (f"{shard}-{number:06d}.txt", text),
                    (f"{shard}-{number:06d}.jpg", source.randbytes(len(text))),
                ):
                    for piece in tar.encode(name.encode(), payload)[0]:
                        stored += file.write(piece)
                number += 1
            file.write(tar.end(PlacedEntries.concat([]), stored))


def measure(root: Path, suffix: str) -> dict[str, Any]:
    """The figures of one suffix; the tars are in ``root / "tar"``."""
    codec = codec_of(suffix)
    assert codec is not None
    encoded = root / suffix.strip(".")
    encoded.mkdir()
    tars = sorted((root / "tar").glob("*.tar"))
    names = [encoded / f"{path.stem}{suffix}" for path in tars]

    def encode() -> None:
        for path, name in zip(tars, names, strict=True):
            with name.open("wb") as file:
                for piece in encoded_pieces(codec, codec.default_level, _pieces(path)):
                    file.write(piece)

    figures: dict[str, Any] = {"encode": cpu_seconds(encode)}
    figures["decode"] = cpu_seconds(lambda: [_decode(codec, name) for name in names])
    figures["move"] = cpu_seconds(lambda: _shuffle(root, "tar", "moved", ".tar"))
    figures["shuffle"] = cpu_seconds(lambda: _shuffle(root, encoded.name, "shuffled", suffix))
    parts = sum(figures[name] for name in ("encode", "decode", "move"))
    figures["ratio"] = figures["shuffle"] / parts
    figures["file_bytes"] = sum(name.stat().st_size for name in names)
    if suffix == ".tgz":
        used = cpu_seconds(lambda: _webdataset(root, names[:WEBDATASET_SHARDS]))
        figures["webdataset"] = used * SHARDS / WEBDATASET_SHARDS
        figures["webdataset_ratio"] = figures["webdataset"] / figures["shuffle"]
    return figures


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(STEP_BYTES):
            yield piece


def _decode(codec: Codec, path: Path) -> None:
    for _ in Decoding(path.name, codec, _pieces(path), path.stat().st_size):
        pass


def _shuffle(root: Path, source: str, target: str, suffix: str) -> None:
    spec = {
        "input_bck": source,
        "output_bck": f"{target}{suffix}",
        "input_format": {"template": f"s-{{0..{SHARDS - 1}}}"},
        "input_extension": suffix,
        "output_format": "out-%06d",
        "output_shard_size": "64MB",
        "algorithm": {"kind": "shuffle", "seed": "1"},
    }
    file = root / "spec.json"
    file.write_text(json.dumps(spec))
    line = [sys.executable, "-m", "dsort", "start", "-f", str(file), "--root", str(root)]
    options = ["--move", "spill", "--progress", "none", "--overwrite"]
    subprocess.run([*line, *options], check=True, stdout=subprocess.DEVNULL)


def _webdataset(root: Path, shards: list[Path]) -> None:
    output = root / "webdataset"
    output.mkdir()
    command = [sys.executable, "-c", WEBDATASET, str(output), *map(str, shards)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--total", type=int, default=300_000_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="codecs-") as temporary:
        root = Path(temporary)
        (root / "tar").mkdir()
        make_tars(root / "tar", arguments.total)
        figures = {suffix: measure(root, suffix) for suffix in SUFFIXES}
    print(json.dumps({"total_bytes": arguments.total, "cpu_seconds": figures}))


if __name__ == "__main__":
    main()
