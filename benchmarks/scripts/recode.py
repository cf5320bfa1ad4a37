"""Only decodes or encodes shards with dsort's own codecs: a part of a shuffle of encoded shards.

Run as ``python -m benchmarks.scripts.recode``. Decoded bytes are dropped; encoded bytes are written
to ``--output``. The report also has the processor seconds, without those of the start.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

from dsort.containers.codecs.base import Codec
from dsort.containers.codecs.decoding import Decoding
from dsort.containers.registry import codec_of
from dsort.workers.encoder import encoded_pieces

STEP_BYTES = 1 << 20


def pieces_of(path: Path) -> Iterator[bytes]:
    """The bytes of a file, by the megabyte."""
    with path.open("rb") as file:
        while piece := file.read(STEP_BYTES):
            yield piece


def decode(codec: Codec, path: Path) -> None:
    """Read a shard whole."""
    for _ in Decoding(path.name, codec, pieces_of(path), path.stat().st_size):
        pass


def encode(codec: Codec, path: Path, target: Path) -> None:
    """Write a shard whole."""
    with target.open("wb") as file:
        for piece in encoded_pieces(codec, codec.default_level, pieces_of(path)):
            file.write(piece)


def main() -> None:
    """Decode or encode all given shards."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--part", choices=("decode", "encode"), required=True)
    parser.add_argument("--suffix", required=True, help="of the encoded shards")
    parser.add_argument("shards", nargs="+", type=Path)
    arguments = parser.parse_args()
    codec = codec_of(arguments.suffix)
    assert codec is not None, arguments.suffix
    start, cpu_start = time.perf_counter(), time.process_time()
    for path in arguments.shards:
        if arguments.part == "decode":
            decode(codec, path)
        else:
            encode(codec, path, arguments.output / f"{path.stem}{arguments.suffix}")
    report = {
        "work_seconds": time.perf_counter() - start,
        "work_cpu_seconds": time.process_time() - cpu_start,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
