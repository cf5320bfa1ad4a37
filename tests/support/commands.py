"""Command lines in tests: how they are called and how they end (fixtures ``cli``, ``command``), and
a library whose answers a test sets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Ended:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str


CommandLine = Callable[..., Ended]


SPEC = {
    "input_bck": "images",
    "output_bck": "shuffled",
    "output_format": "shuffled-%02d",
    "output_shard_records": 4,
    "algorithm": {"kind": "shuffle", "seed": 7},
}
"""A shuffle of the bucket ``images`` into shards of four records."""


def answering(
    monkeypatch: pytest.MonkeyPatch, verb: str, answer: object
) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Make ``dsort.api.<verb>`` return ``answer`` (if it is callable: its result for the named
    arguments). Returns a list to which each call is appended."""
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def fake(*args: Any, **named: Any) -> object:
        calls.append((args, named))
        return answer(**named) if callable(answer) else answer

    monkeypatch.setattr(f"dsort.api.{verb}", fake, raising=False)
    return calls
