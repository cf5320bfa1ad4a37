"""The costs of steps that read only names, of a join of two inputs, and of orders by the content of
records, beside a plain shuffle of the same tars in the same run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from benchmarks.container_suites import Entry, compare
from benchmarks.contenders import Contender, Task, dsort_account, dsort_command
from benchmarks.join_data import INPUTS, part_inputs
from benchmarks.measure import Bench
from benchmarks.settings import Measured, Settings

__all__ = ["KINDS", "STEPS", "steps"]

KINDS: Final = ("100k", "3k-files")
STEPS: Final[Mapping[str, Mapping[str, Any]]] = {
    "sample": {"sample": {"fraction": 1.0}},
    "require": {"require": {"extensions": ["png;jpg"]}},
    "rename": {"fields": {"rename": {"jpg": "image.jpg"}}},
    "rekey": {"rekey": "{shard}/{key}"},
}
"""Steps that keep all records, so that their outputs are as large as those of the plain shuffle.
Steps that need numbers over all shards read the inputs twice, and are no part of the target."""
NUMBERING: Final[Mapping[str, Mapping[str, Any]]] = {
    "slice": {"slice": "0:"},
    "number": {"rekey": "%09d"},
}
ORDER_KINDS: Final = ("classed-100k", "classed-3k")
_LENGTH: Final = {
    "kind": "content",
    "extension": ".json",
    "json_field": "length",
    "content_key_type": "int",
}
ORDERS: Final[Mapping[str, Mapping[str, Any]]] = {
    "content": _LENGTH,
    "keys": {"keys": [{**_LENGTH, "bins": [256, 512, 1024]}, {"kind": "shuffle"}], "seed": 42},
    "interleave": {"kind": "shuffle", "seed": 42, "interleave": {"by": "json.label"}},
    "batches": {
        "kind": "shuffle",
        "seed": 42,
        "batches": {"records": 64, "similar": "json.length", "window": 6400},
    },
}
"""Orders that read a member of each record. Values that are no hashes are surveyed before payload
is spilled."""
JOIN_KINDS: Final = ("labelled-100k", "labelled-3k")
JOIN: Final = "join"
PLAIN: Final = "plain"


def steps(bench: Bench, settings: Settings) -> Measured:
    """In memory, mapped and spilled: each step alone, and the shuffle without a step."""
    measured = Measured([], [])
    for move in ("map", "spill"):
        for kind in KINDS:
            entries = [Entry(_shuffle(PLAIN, settings.shards, move, None), kind, ".tar")]
            for name, step in {**STEPS, **NUMBERING}.items():
                entries.append(Entry(_shuffle(name, settings.shards, move, step), kind, ".tar"))
            found = compare(bench, settings, "steps", f"{kind}-{move}", entries)
            measured.runs.extend(found.runs)
            measured.skips.extend(found.skips)
        for kind in ORDER_KINDS:
            entries = [Entry(_shuffle(PLAIN, settings.shards, move, None), kind, ".tar")]
            for name, algorithm in ORDERS.items():
                ordered = _shuffle(name, settings.shards, move, None, {"algorithm": algorithm})
                entries.append(Entry(ordered, kind, ".tar"))
            found = compare(bench, settings, "steps", f"{kind}-{move}", entries)
            measured.runs.extend(found.runs)
            measured.skips.extend(found.skips)
        for kind in JOIN_KINDS:
            entries = [
                Entry(_shuffle(PLAIN, settings.shards, move, None), kind, ".tar"),
                Entry(Contender(JOIN, _join(settings.shards, move), dsort_account), kind, ".tar"),
            ]
            found = compare(bench, settings, "steps", f"{kind}-{move}", entries)
            measured.runs.extend(found.runs)
            measured.skips.extend(found.skips)
    return measured


def _join(shards: int, move: str) -> Callable[[Task], list[str]]:
    """A job that joins the same records from two inputs."""

    def command(task: Task) -> list[str]:
        part_inputs(task.data)
        fields = {
            "input_bck": None,
            "input_format": None,
            "inputs": [{"name": name, "input_bck": name} for name in INPUTS],
            "join": {"by": "key"},
            "output_shard_size": None,
            "output_shard_count": shards,
        }
        return dsort_command(move, fields)(task)

    return command


def _shuffle(
    name: str,
    shards: int,
    move: str,
    step: Mapping[str, Any] | None,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> Contender:
    fields = {
        "output_shard_size": None,
        "output_shard_count": shards,
        "transform": None if step is None else {"steps": [step]},
        **more,
    }
    return Contender(name, dsort_command(move, fields), dsort_account)
