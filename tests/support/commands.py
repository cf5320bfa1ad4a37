"""Command lines in tests: how they are called and how they end (fixtures ``cli``, ``command``), and
a library that answers as a test wants it to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it said."""

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
    """Have ``dsort.api.<verb>`` give ``answer`` (or what it returns, called with the named
    arguments); the calls, as they come in."""
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def fake(*args: Any, **named: Any) -> object:
        calls.append((args, named))
        return answer(**named) if callable(answer) else answer

    monkeypatch.setattr(f"dsort.api.{verb}", fake, raising=False)
    return calls
