"""How long placing records by an external key map takes, at full size, on one core.

    python benchmarks/keymap.py [--json] [--records N] [--rounds N]

Data is made up and seeded; each case runs in a process of its own, so that its peak memory is its
own. Compiling counts. The targets: 1 M records x 1,000 expressions in 10 s, and 1 M records x 1 M
keys that equal names in 3 s.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import random
import resource
import statistics
import time
from multiprocessing.connection import Connection

import numpy as np

from dsort.data.columns import BytesColumn
from dsort.keymap.match import KeyMap
from dsort.keymap.text import entries_of_mapping

TEMPLATES = 100
SEED = 20
CASES = {
    "1,000 expressions n00000000_.*": (1_000, "class"),
    "1,000 expressions a.*b": (1_000, "gap"),
    "1,000 substrings": (1_000, "substring"),
    "20,000 expressions n00000000_.*": (20_000, "class"),
    "1 M names, every record there": (1_000_000, "name"),
    "1 M record keys, every record there": (1_000_000, "record key"),
    "1 M names, half of the records not there": (1_000_000, "half"),
}


def keys_of(kind: str, count: int) -> list[str]:
    """The keys of a map."""
    if kind in ("name", "half"):
        return [f"train/{number:08}.jpg" for number in range(count)]
    if kind == "record key":
        return [f"train/{number:08}" for number in range(count)]
    if kind == "class":
        return [f"n{number:08}_.*" for number in range(count)]
    if kind == "gap":
        return [f"a{number:03}.*b{number:03}" for number in range(count)]
    return [f"{number * 7:05}" for number in range(count)]


def record_key_of(kind: str, number: int, rng: random.Random, keys: int) -> str:
    """The key of a record."""
    if kind == "class":
        return f"train/n{rng.randrange(keys):08}_{number}"
    if kind == "gap":
        return f"a{rng.randrange(1000):03}/b{rng.randrange(1000):03}/{number}"
    if kind == "substring":
        return f"{rng.getrandbits(96):024x}"
    return f"train/{number * 2 if kind == 'half' else number:08}"


def measure(kind: str, key_count: int, records: int) -> dict[str, float]:
    """Seconds of each step and peak memory of one case."""
    rng = random.Random(SEED)
    record_keys = [record_key_of(kind, i, rng, key_count).encode() for i in range(records)]
    names = [key + extension for key in record_keys for extension in (b".jpg", b".json")]
    columns = BytesColumn.of(record_keys), BytesColumn.of(names)
    offsets = np.arange(0, 2 * records + 1, 2)
    keys = keys_of(kind, key_count)
    mapping = {f"out-{group:03}-%06d": keys[group::TEMPLATES] for group in range(TEMPLATES)}
    del record_keys, names
    started = time.perf_counter()
    entries = entries_of_mapping(mapping)
    parsed = time.perf_counter()
    before_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    keymap = KeyMap.of(entries)
    made = time.perf_counter()
    match = keymap.lookup(*columns, offsets)
    done = time.perf_counter()
    return {
        "parse_seconds": parsed - started,
        "compile_seconds": made - parsed,
        "lookup_seconds": done - made,
        "placed_share": float((match.groups >= 0).mean()),
        "more_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before_mb,
    }


def run(link: Connection, kind: str, key_count: int, records: int) -> None:
    """One case in a process of its own."""
    link.send(measure(kind, key_count, records))


def measure_apart(kind: str, key_count: int, records: int) -> dict[str, float]:
    """:func:`measure` in a new process."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=run, args=(there, kind, key_count, records))
    process.start()
    there.close()
    result: dict[str, float] = here.recv()
    process.join()
    return result


def main() -> None:
    """Print a line a case, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    report = {}
    for title, (key_count, kind) in CASES.items():
        rounds = [measure_apart(kind, key_count, options.records) for _ in range(options.rounds)]
        report[title] = {
            figure: statistics.median(result[figure] for result in rounds) for figure in rounds[0]
        }
        if not options.json:
            figures = report[title]
            print(
                f"{title:42} compile {figures['compile_seconds']:6.2f} s   "
                f"lookup {figures['lookup_seconds']:6.2f} s   "
                f"{figures['more_memory_mb']:6.0f} MB more   "
                f"{figures['placed_share']:6.1%} placed",
                flush=True,
            )
    if options.json:
        machine = f"{platform.machine()}, Python {platform.python_version()}"
        print(json.dumps({"records": options.records, "machine": machine, "cases": report}))


if __name__ == "__main__":
    main()
