"""Steps that run code: what they cost beside the plain shuffle, and beside others' maps.

Run as ``python -m benchmarks.user_code``; one JSON object on stdout. Figures are of whole commands,
the least of some rounds. ``us_a_record``: processor time that an identity ``map`` takes more than
the plain shuffle of the same records, moved the same way; wanted were 10 µs. ``webdataset`` and
``ray_data`` say how much more processor time (``cpu``) and time of work (``seconds``) their maps of
the identity take from shard to shard, with as many processes; wanted were 5 and 3. ``resize``: how
fast dsort resizes JPEGs while it shuffles them, as a multiple of a bare loop over Pillow in a
process a core, which writes nothing and knows the bytes already; wanted was 0.9.
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from benchmarks.contenders import PHASES, read_report
from benchmarks.memory import TreeSampler
from benchmarks.process import run_tree

__all__ = ["contenders_of", "main", "make_images", "make_records"]

REPOSITORY = Path(__file__).resolve().parent.parent
FUNCTIONS = "benchmarks.scripts.map_functions"
TIMEOUT_S = 3600.0
PAYLOAD_BYTES: Final = 3000
SIDE: Final = 500
MODULES: Final = {"webdataset": "webdataset", "ray_data": "ray"}
"""What others need; one that is not installed is left out."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a command took. ``work_s``: by its own account, without its start."""

    cpu_s: float
    work_s: float

    def least(self, other: Cost | None) -> Cost:
        """The better of two rounds, each by itself."""
        if other is None:
            return self
        return Cost(min(self.cpu_s, other.cpu_s), min(self.work_s, other.work_s))


def make_records(directory: Path, shards: int, records: int) -> None:
    """Tars of records of two members that no codec knows."""
    draw = random.Random(1)
    for shard, number, tar in _tars(directory, shards, records):
        for extension in ("bin", "dat"):
            _add(tar, f"{shard * records + number:08d}.{extension}", draw.randbytes(PAYLOAD_BYTES))


def make_images(directory: Path, shards: int, records: int) -> None:
    """Tars of JPEGs of ``SIDE`` pixels a side, and classes. There are sixteen pictures."""
    import numpy as np
    from PIL import Image

    draw, pictures = np.random.default_rng(1), []
    for _ in range(16):
        coarse = draw.integers(0, 256, (SIDE // 10, SIDE // 10, 3), dtype=np.uint8)
        stored = io.BytesIO()
        image = Image.fromarray(coarse).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
        image.save(stored, "JPEG", quality=90)
        pictures.append(stored.getvalue())
    for shard, number, tar in _tars(directory, shards, records):
        key = shard * records + number
        _add(tar, f"{key:08d}.jpg", pictures[key % len(pictures)])
        _add(tar, f"{key:08d}.cls", b"%d" % (key % 1000))


def _tars(directory: Path, shards: int, records: int) -> Any:
    directory.mkdir(parents=True)
    for shard in range(shards):
        with tarfile.open(
            directory / f"s-{shard:03d}.tar", "w", format=tarfile.USTAR_FORMAT
        ) as tar:
            for number in range(records):
                yield shard, number, tar


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def dsort(root: Path, bucket: str, step: dict[str, Any] | None) -> Cost:
    """A shuffle, with a step."""
    spec: dict[str, Any] = {
        "input_bck": bucket,
        "output_bck": "out",
        "output_format": "out-%05d",
        "output_shard_size": "64MB",
        "algorithm": {"kind": "shuffle", "seed": "1"},
    }
    if step is not None:
        spec["transform"] = {"steps": [step]}
    command = ["-m", "dsort", "start", "--root", str(root), "--move", "spill", "--workers", "2"]
    command += ["--json", "--progress", "none", "-f", json.dumps(spec)]
    cost, report = _run(root, command)
    return Cost(cost, sum(report["phase_seconds"][phase] for phase in PHASES))


def script(root: Path, name: str, bucket: str) -> Cost:
    """One of ``benchmarks/scripts``, over all shards with two processes."""
    shards = sorted(map(str, (root / bucket).glob("*.tar")))
    place = str(REPOSITORY / "benchmarks" / "scripts" / f"{name}.py")
    cost, report = _run(root, [place, "--workers", "2", "--output", str(root / "out"), *shards])
    return Cost(cost, report["work_seconds"])


def _run(root: Path, arguments: Sequence[str]) -> tuple[float, dict[str, Any]]:
    shutil.rmtree(root / "out", ignore_errors=True)
    (root / "out").mkdir()
    command = [sys.executable, *arguments]
    finished = run_tree(
        command, cwd=REPOSITORY, timeout_seconds=TIMEOUT_S, sampler=TreeSampler(0.5)
    )
    if finished.exit_code:
        raise SystemExit(finished.stderr)
    return finished.cpu_seconds, read_report(finished.stdout)


def contenders_of(root: Path) -> dict[str, Callable[[], Cost]]:
    """Those whose modules are installed, by name."""
    same = {"map": {"python": f"{FUNCTIONS}:same"}}
    resize = {"map": {"python": f"{FUNCTIONS}:resized", "decode": {"jpg": "pil"}}}
    found: dict[str, Callable[[], Cost]] = {
        "plain": lambda: dsort(root, "records", None),
        "map": lambda: dsort(root, "records", same),
        "webdataset": lambda: script(root, "map_with_webdataset", "records"),
        "ray_data": lambda: script(root, "map_with_ray_data", "records"),
        "resize": lambda: dsort(root, "images", resize),
        "pillow": lambda: script(root, "resize_with_pillow", "images"),
    }
    lost = {name for name, module in MODULES.items() if find_spec(module) is None}
    return {name: command for name, command in found.items() if name not in lost}


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--records", type=int, default=10_000, help="of a shard")
    parser.add_argument("--images", type=int, default=500, help="of a shard")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path, help="where data is made for the time")
    given = parser.parse_args()
    found: dict[str, Cost] = {}
    with tempfile.TemporaryDirectory(prefix="dsort-code-", dir=given.directory) as directory:
        root = Path(directory)
        make_records(root / "records", given.shards, given.records)
        make_images(root / "images", given.shards, given.images)
        for _ in range(given.rounds):
            for name, cost in contenders_of(root).items():
                found[name] = cost().least(found.get(name))
    records = given.shards * given.records
    report = {
        "records": records,
        "images": given.shards * given.images,
        "rounds": given.rounds,
        "cpu_s": {name: round(cost.cpu_s, 2) for name, cost in found.items()},
        "work_s": {name: round(cost.work_s, 2) for name, cost in found.items()},
        "us_a_record": round((found["map"].cpu_s - found["plain"].cpu_s) / records * 1e6, 1),
        "resize": _times(found["pillow"], found["resize"]),
    }
    others = (name for name in MODULES if name in found)
    report |= {name: _times(found[name], found["map"]) for name in others}
    print(json.dumps(report, indent=2))


def _times(other: Cost, ours: Cost) -> dict[str, float]:
    return {
        "cpu": round(other.cpu_s / ours.cpu_s, 2),
        "seconds": round(other.work_s / ours.work_s, 2),
    }


if __name__ == "__main__":
    main()
