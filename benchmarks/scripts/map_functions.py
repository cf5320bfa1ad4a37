"""What maps of the benchmarks run on each record."""

from __future__ import annotations

from typing import Any

__all__ = ["resized", "same"]

SIDE = 256


def same(sample: dict[str, Any]) -> dict[str, Any]:
    """The record, as it is."""
    return sample


def resized(sample: dict[str, Any]) -> dict[str, Any]:
    """A picture of ``SIDE`` pixels a side."""
    return {**sample, "jpg": sample["jpg"].resize((SIDE, SIDE))}
