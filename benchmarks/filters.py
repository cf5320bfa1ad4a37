"""Filters and outputs: what they cost beside the plain shuffle of the same records.

Run as ``python -m benchmarks.filters``; one JSON object on stdout. Each record has an image, a
class and JSON of 200 bytes. Figures are seconds of processor time of the whole tree of a command,
the least of some rounds: ``us_a_record`` is what a job takes more than the plain shuffle, by record
(filters here keep all), and ``of_plain`` is how fast it is, as a multiple of that. Wanted were 6 µs
for a filter, and 0.7 for outputs.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any, Final

from benchmarks.memory import TreeSampler
from benchmarks.process import run_tree

__all__ = ["JOBS", "main", "make_shards", "measure"]

REPOSITORY = Path(__file__).resolve().parent.parent
RECORDS_A_SHARD = 5000
TIMEOUT_S = 3600.0
_HALVES: Final = [{"name": "train", "fraction": 0.9}, {"name": "val", "fraction": 0.1}]
_CLASSES: Final = [{"name": "low", "when": 'ext("cls") < 500'}, {"name": "rest", "when": True}]


def _filter(text: str) -> dict[str, Any]:
    return {"transform": {"steps": [{"filter": text}]}}


JOBS: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "filter over the index": _filter('size("jpg") < 5_000_000 && has("cls")'),
    "filter over keys": _filter('key.matches("^[0-9]+$")'),
    "filter over JSON": _filter('ext("json").score >= 0.0 && size("jpg") < 5_000_000'),
    "filter over classes": _filter('ext("cls") >= 0'),
    "outputs by key": {"outputs": _HALVES},
    "outputs by JSON": {"outputs": _HALVES, "split_by": 'ext("json").url'},
    "outputs by condition": {"outputs": _CLASSES},
    "exact outputs": {"outputs": _HALVES, "exact": True},
    "exact outputs of 1000 classes": {"outputs": _HALVES, "exact": True, "stratify": "cls"},
    "outputs in two buckets": {"outputs": [_HALVES[0], {**_HALVES[1], "output_bck": "val"}]},
}


def make_shards(directory: Path, shards: int, image_bytes: int) -> None:
    """Tars of records as described above."""
    draw = random.Random(1)
    directory.mkdir(parents=True)
    for shard in range(shards):
        with tarfile.open(
            directory / f"s-{shard:03d}.tar", "w", format=tarfile.USTAR_FORMAT
        ) as tar:
            for number in range(shard * RECORDS_A_SHARD, (shard + 1) * RECORDS_A_SHARD):
                said = {
                    "score": draw.random(),
                    "lang": "en",
                    "caption": "a photo of a cat " * 5,
                    "url": f"https://example.com/{number % 1000}.jpg",
                    "tags": ["a", "b"],
                }
                for extension, data in (
                    ("jpg", draw.randbytes(image_bytes)),
                    ("cls", b"%d\n" % draw.randrange(1000)),
                    ("json", json.dumps(said).encode()),
                ):
                    info = tarfile.TarInfo(f"{number:08d}.{extension}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))


def measure(root: Path, fields: dict[str, Any], move: str) -> float:
    """Seconds of processor time of one command."""
    for bucket in ("out", "val"):
        shutil.rmtree(root / bucket, ignore_errors=True)
    spec = {
        "input_bck": "in",
        "output_bck": "out",
        "output_format": "{split}-%05d" if "outputs" in fields else "all-%05d",
        "output_shard_records": RECORDS_A_SHARD,
        "algorithm": {"kind": "shuffle", "seed": "1"},
        **fields,
    }
    command = [sys.executable, "-m", "dsort", "start", "--root", str(root), "--move", move]
    command += ["--workers", "2", "-f", json.dumps(spec)]
    finished = run_tree(
        command, cwd=REPOSITORY, timeout_seconds=TIMEOUT_S, sampler=TreeSampler(0.5)
    )
    if finished.exit_code:
        raise SystemExit(finished.stderr)
    return finished.cpu_seconds


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shards", type=int, default=20)
    parser.add_argument("--image-bytes", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--move", default="map")
    parser.add_argument("--only", default="", help="those whose names have this in them")
    parser.add_argument("--directory", type=Path, help="where data is made for the time")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dsort-filters-", dir=given.directory) as directory:
        root = Path(directory)
        make_shards(root / "in", given.shards, given.image_bytes)
        found: dict[str, float] = {}
        for _ in range(given.rounds):
            for name, fields in JOBS.items():
                if name != "plain" and given.only not in name:
                    continue
                seconds = measure(root, fields, given.move)
                found[name] = min(found.get(name, seconds), seconds)
    records = given.shards * RECORDS_A_SHARD
    figures = {
        name: {
            "cpu_s": round(seconds, 3),
            "us_a_record": round((seconds - found["plain"]) / records * 1e6, 2),
            "of_plain": round(found["plain"] / seconds, 3),
        }
        for name, seconds in found.items()
    }
    report = {"records": records, "move": given.move, "rounds": given.rounds, "jobs": figures}
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
