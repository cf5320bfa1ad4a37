"""What users write: functions and classes that steps of tests run in processes of their own."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Sample = dict[str, Any]


def same(sample: Sample) -> Sample:
    return sample


def upper(sample: Sample) -> Sample:
    return {key: data if key == "__key__" else data.upper() for key, data in sample.items()}


def longer(sample: Sample, times: int = 2) -> Sample | None:
    """None for records whose key has an a."""
    if "a" in sample["__key__"]:
        return None
    changed = {key: data * times for key, data in sample.items() if key != "__key__"}
    return {**changed, "n.txt": str(len(changed))}


def rekeyed(sample: Sample) -> Sample:
    return {**sample, "__key__": f"new/{sample['__key__']}"}


def doubled(sample: Sample) -> Iterator[Sample]:
    for name in sorted(set(sample) - {"__key__"}):
        yield {name: sample[name]}


def partly(sample: Sample) -> Sample | None:
    """By key: the very record; with a member more, less, changed, elsewhere, or made anew; none."""
    first, *rest = [name for name in sample if name != "__key__"]
    ways: list[Sample | None] = [
        sample,
        {**sample, "n.txt": "1"},
        {name: sample[name] for name in [*rest, first]},
        {first: sample[first]},
        {**sample, first: sample[first] + b"!"},
        {name: bytes(bytearray(sample[name])) for name in [first, *rest]},
        None,
    ]
    return ways[sum(sample["__key__"].encode()) % len(ways)]


def numbered(sample: Sample) -> Iterator[Sample]:
    for number in range(2):
        yield {**sample, "cls": number}


def of_row(sample: Sample) -> Sample:
    tags = sample.get("tags", ["-"])
    return {"txt": f"{sample['n'] + 0} {','.join(tags)}"}


def of_values(row: Sample) -> Sample:
    """A row with more columns, made of its values."""
    size = row["n"]
    vector = None if size is None else [size / 2, row["part"]]
    norm = 0.5 if row["ok"] else 1.5
    return {**row, "norm": norm, "vector": vector, "said": ",".join(row["tags"] or ["-"])}


def with_more(row: Sample) -> Sample:
    return {**row, "more": "words"}


def twice(sample: Sample) -> list[Sample]:
    return [sample, sample]


def to_one_key(sample: Sample) -> Sample:
    return {**sample, "__key__": "all"}


def scored(sample: Sample) -> Sample:
    return {"json": {"length": len(sample["jpg"]), "known": sample["info.json"]["known"]}, "x": 5}


def drawn(sample: Sample, rng: Any) -> Sample:
    return {"lot": str(int(rng.integers(1 << 62)))}


def drawn_beside(sample: Sample, rng: Any) -> Sample:
    return {**sample, **drawn(sample, rng)}


class Counter:
    """Adds a word, and how many samples came together."""

    def __init__(self, word: str) -> None:
        self.word = word

    def __call__(self, samples: list[Sample]) -> list[Sample | None]:
        if not isinstance(samples, list):
            raise TypeError("no list")
        return [{**each, "txt": f"{self.word} {each['__key__']}"} for each in samples]


def printing(sample: Sample) -> Sample:
    print("said to standard output")
    os.write(1, b"and to its descriptor\n")
    sys.stderr.write("flood " * 50_000)
    return sample


def broken(sample: Sample, how: str, key: str = "bad") -> Any:
    """Goes wrong at the record ``key``, in one of many ways."""
    if sample["__key__"] != key:
        return sample
    return WAYS[how](sample)


def _raise(sample: Sample) -> Any:
    raise ValueError(f"cannot do {sample['__key__']}")


def _hang(sample: Sample) -> Any:
    while True:
        signal.pause()


def _die(sample: Sample) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def _leak(sample: Sample) -> Any:
    return {"x": b"x" * (64 << 30)}


WAYS: dict[str, Any] = {
    "raises": _raise,
    "hangs": _hang,
    "is killed": _die,
    "leaks": _leak,
    "exits": lambda sample: sys.exit(3),
    "exits at once": lambda sample: os._exit(3),
    "gives a number": lambda sample: 7,
    "gives a list": lambda sample: [sample],
    "gives an object": lambda sample: {"jpg": object()},
    "gives no extension": lambda sample: {"a/b": b""},
    "gives a key with a dot": lambda sample: {**sample, "__key__": "a.b"},
    "gives a key that leads out": lambda sample: {**sample, "__key__": "../a"},
}


class DiesOnce:
    """Its process is killed at a record, the first time."""

    def __init__(self, marker: str) -> None:
        self.marker = Path(marker)

    def __call__(self, sample: Sample) -> Sample:
        if sample["__key__"] == "bad" and not self.marker.exists():
            self.marker.touch()
            _die(sample)
        return sample


class Leaking:
    """Keeps eight megabytes of each record."""

    def __init__(self) -> None:
        self.kept: list[bytearray] = []

    def __call__(self, sample: Sample) -> Sample:
        self.kept.append(bytearray(8 << 20))
        return sample


def told(sample: Sample) -> Sample:
    """What its process was told of GPUs and CPUs."""
    names = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
    return {f"{name.lower()}.txt": os.environ.get(name, "?") for name in names}
