"""``dsort.loader`` beside other loaders: samples a second, the first batch, and a resumed loop.
``python -m benchmarks.loader --directory DIR [--megabytes 512] [--only bytes|jpeg|resume]``

Each loader reads the same tars in ``--rounds`` processes; the fastest by wall clock counts. Lines
go to standard error, one JSON object to standard output."""

from __future__ import annotations

import argparse
import importlib
import io
import json
import queue
import random
import resource
import shutil
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from msgspec.structs import replace

BATCH = 64
MANIFEST = ".dsort/bench/manifest.json"
THREADS = 2
PROFILES = {"3k": 3_000, "100k": 100_000}


def write_tars(directory: Path, payloads: Iterator[bytes], extension: str, total: int) -> None:
    """Tars of 64 MB with samples of a payload and a class, ``total`` bytes in all."""
    directory.mkdir(parents=True)
    number = written = 0
    shard = 0
    while written < total:
        with tarfile.open(directory / f"s-{shard:04d}.tar", "w") as archive:
            size = 0
            while size < 64 << 20 and written < total:
                payload = next(payloads)
                for name, data in ((extension, payload), ("cls", b"%d" % (number % 1000))):
                    info = tarfile.TarInfo(f"{number:09d}.{name}")
                    info.size = len(data)
                    archive.addfile(info, io.BytesIO(data))
                number, size, written = number + 1, size + len(payload), written + len(payload)
        shard += 1


def noise(size: int) -> Iterator[bytes]:
    """Payloads that are slices of the same random bytes."""
    data = random.Random(size).randbytes(4 * size)
    while True:
        yield from (data[at : at + size] for at in range(0, 3 * size, 997))


def pictures() -> Iterator[bytes]:
    """JPEGs of 256 x 256 pixels, about 20 kB each."""
    from PIL import Image

    rng = np.random.default_rng(1)
    found = []
    for _ in range(64):
        small = rng.integers(0, 255, (32, 32, 3), np.uint8)
        picture = Image.fromarray(small).resize((256, 256), Image.Resampling.BICUBIC)
        grain = rng.integers(0, 24, (256, 256, 3), np.uint8)
        stored = io.BytesIO()
        Image.fromarray(np.asarray(picture) // 2 + grain).save(stored, "JPEG", quality=85)
        found.append(stored.getvalue())
    while True:
        yield from found


def dsort_batches(where: Path, decode: str | None, **options: Any) -> Iterable[list[Any]]:
    """Batches of dsort's loader. It reads forward, because no index is kept unless ``options`` name
    a cache."""
    from dsort.loader import Loader

    usual: dict[str, Any] = {"threads": THREADS, "cache": ""}
    return Loader(where / MANIFEST, batch_size=BATCH, decode=decode, **usual | options)


def webdataset_threads(where: Path, decode: str | None) -> Iterator[Any]:
    """webdataset in as many threads as the loader has, each with its share of the shards."""
    found: queue.Queue[Any] = queue.Queue(2 * THREADS)

    def read(first: int) -> None:
        try:
            for batch in _batches(_webdataset(where, decode, first, THREADS)):
                found.put(batch)
        finally:
            found.put(None)

    for first in range(THREADS):
        threading.Thread(target=read, args=(first,), daemon=True).start()
    left = THREADS
    while left:
        batch = found.get()
        if batch is None:
            left -= 1
        else:
            yield batch


def _webdataset(where: Path, decode: str | None, first: int = 0, step: int = 1) -> Any:
    import webdataset

    shards = [str(path) for path in sorted(where.glob("*.tar"))][first::step]
    dataset = webdataset.WebDataset(shards, shardshuffle=False)
    return dataset if decode is None else dataset.decode(decode)


def webdataset_batches(where: Path, decode: str | None, workers: int) -> Iterable[Any]:
    """webdataset, alone or in workers of PyTorch."""
    import webdataset

    dataset = _webdataset(where, decode)
    if not workers:
        return _batches(dataset)
    return webdataset.WebLoader(  # type: ignore[no-any-return]
        dataset.listed(BATCH) if hasattr(dataset, "listed") else dataset.batched(BATCH),
        num_workers=workers,
        batch_size=None,
    )


def _batches(samples: Iterable[Any]) -> Iterator[list[Any]]:
    batch = []
    for sample in samples:
        batch.append(sample)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


CONTENDERS: dict[str, Callable[[Path, str | None], Iterable[Any]]] = {
    "dsort": lambda where, decode: dsort_batches(where, decode),
    "dsort, 1 thread": lambda where, decode: dsort_batches(where, decode, threads=1),
    "dsort, by its index": lambda where, decode: dsort_batches(where, decode, cache=where / "kept"),
    "dsort, window(4)": lambda where, decode: dsort_batches(where, decode, order="window(4)"),
    "webdataset": lambda where, decode: webdataset_batches(where, decode, 0),
    "webdataset, 2 threads": webdataset_threads,
    "webdataset, 2 workers": lambda where, decode: webdataset_batches(where, decode, THREADS),
}


def run_one(contender: str, where: Path, decode: str | None) -> dict[str, float]:
    """Read everything once, in this process. Modules are loaded before."""
    for name in ("dsort.loader", "webdataset", "PIL.Image"):
        importlib.import_module(name)
    begun, cpu_s = time.perf_counter(), _cpu_s()
    first_s = 0.0
    count = 0
    for batch in CONTENDERS[contender](where, decode):
        if not count:
            first_s = time.perf_counter() - begun
        count += BATCH if not isinstance(batch, list) else len(batch)
    wall_s = time.perf_counter() - begun
    return {"samples": count, "wall_s": wall_s, "cpu_s": _cpu_s() - cpu_s, "first_s": first_s}


def _cpu_s() -> float:
    used = [resource.getrusage(each) for each in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def measure(directory: Path, name: str, decode: str | None, rounds: int) -> dict[str, Any]:
    """For each contender its fastest round, or the reason why it was not run. Prints a line for
    each."""
    best_of: dict[str, Any] = {}
    for contender in CONTENDERS:
        command = [sys.executable, "-m", "benchmarks.loader", "--directory", str(directory / name)]
        command += ["--contender", contender, "--decode", decode or ""]
        best: dict[str, float] = {}
        for _ in range(rounds):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                reason = done.stderr.strip().splitlines()[-1].replace(str(directory), "DIR")
                _tell(f"{name:6} {contender:22} not run: {reason}")
                best_of[contender] = {"not_run": reason}
                break
            found = json.loads(done.stdout.splitlines()[-1])
            if not best or found["wall_s"] < best["wall_s"]:
                best = best_of[contender] = found
        else:
            _tell(
                f"{name:6} {contender:22} {best['samples'] / best['wall_s']:9,.0f} samples/s  "
                f"{best['cpu_s'] / best['samples'] * 1e6:7.1f} CPU µs a sample  "
                f"first batch {best['first_s']:.3f} s"
            )
    return best_of


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def measure_resume(directory: Path, records: int = 10_000_000) -> dict[str, Any]:
    """Resume in the middle of an epoch of ``records``, with a manifest of 1,000 shards that are all
    links to one file. Returns, by order, the seconds to open a loader and to its first batch."""
    from dsort.loader import Loader

    where, shards = directory / "resume", 1000
    if not (where / MANIFEST).exists():
        shutil.rmtree(where, ignore_errors=True)
        write_tars(where, noise(100), "bin", records // shards * 100)
        write_manifest(where)
        (found,) = _manifest_rows(where)
        names = [f"t-{number:04d}.tar" for number in range(shards)]
        for name in names:
            (where / name).symlink_to(found.name)
        write_manifest(where, [replace(found, name=name) for name in names])
    orders: dict[str, dict[str, float]] = {}
    for order in ("shards", "window(8)"):

        def opened(order: str = order) -> Any:
            return Loader(where / MANIFEST, batch_size=BATCH, order=order, seed=1, cache="")

        state = {**opened().state_dict(), "records_seen": records // 2 + 3 * BATCH}
        begun = time.perf_counter()
        loader = opened()
        loader.load_state_dict(state)
        made_s = time.perf_counter() - begun
        next(iter(loader))
        took_s = time.perf_counter() - begun
        _tell(f"resume {order:22} {took_s:.3f} s to the first batch, {made_s:.3f} s of it to open")
        orders[order] = {"first_s": took_s, "open_s": made_s}
    return {"records": records, "shards": shards, "orders": orders}


def write_manifest(where: Path, rows: list[Any] | None = None) -> None:
    """Write the manifest of a job whose outputs are the tars in ``where``."""
    from dsort.results.manifest import Making, Manifest, ManifestOutput
    from dsort.results.manifest import write_manifest as write
    from dsort.spec.load import parse_spec

    if rows is None:
        rows = []
        for path in sorted(where.glob("*.tar")):
            data = path.read_bytes()
            with tarfile.open(fileobj=io.BytesIO(data)) as archive:
                members = sum(1 for _ in archive)
            digest = xxhash.xxh3_64_hexdigest(data)
            size = len(data)
            rows.append(ManifestOutput(path.name, members // 2, members, size, size, digest))
    spec = {"input_bck": "in", "output_bck": where.resolve().as_uri(), "output_format": "s-%04d"}
    (where / MANIFEST).parent.mkdir(parents=True, exist_ok=True)
    with (where / MANIFEST).open("wb") as file:
        parsed = parse_spec({**spec, "output_shard_count": 1}).spec
        manifest = Manifest("bench", "2026-01-01T00:00:00Z", parsed, (), rows)
        write(file, manifest, Making({}, {}))


def _manifest_rows(where: Path) -> Any:
    from dsort.results.manifest import parse_manifest

    return parse_manifest((where / MANIFEST).read_bytes()).outputs


def main() -> None:
    """Write missing data, and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["bytes", "jpeg", "resume"])
    parser.add_argument("--contender")
    parser.add_argument("--decode", default="")
    given = parser.parse_args()
    if given.contender:
        print(json.dumps(run_one(given.contender, given.directory, given.decode or None)))
        return
    print(json.dumps(measure_all(given.directory, given.megabytes, given.rounds, given.only)))


def measure_all(directory: Path, megabytes: int, rounds: int, only: str | None) -> dict[str, Any]:
    """All figures. Missing data is written first."""
    report: dict[str, Any] = {"megabytes": megabytes, "threads": THREADS, "rounds": rounds}
    total_bytes = megabytes << 20
    rates = report["rates"] = {}
    if only in (None, "bytes"):
        for name, size in PROFILES.items():
            _make_shards(directory / name, noise(size), "bin", total_bytes)
            rates[name] = measure(directory, name, None, rounds)
    if only in (None, "jpeg"):
        _make_shards(directory / "jpeg", pictures(), "jpg", total_bytes // 8)
        rates["jpeg"] = measure(directory, "jpeg", "rgb8", rounds)
    if only in (None, "resume"):
        report["resume"] = measure_resume(directory)
    return report


def _make_shards(where: Path, payloads: Iterator[bytes], extension: str, total_bytes: int) -> None:
    """Write tars and their manifest, unless they exist."""
    if not (where / MANIFEST).exists():
        shutil.rmtree(where, ignore_errors=True)
        write_tars(where, payloads, extension, total_bytes)
        write_manifest(where)


if __name__ == "__main__":
    main()
