"""Decoders of a loader that are false in a test of truth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dsort.loader import Loader
from tests.support.datasets import Shard, write_shards
from tests.support.engine import record


def test_a_decoder_may_be_empty(tmp_path: Path) -> None:
    class Kept(dict[str, Any]):
        def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
            return {"key": sample["__key__"]}

    write_shards(tmp_path, {"s.tar": Shard(record("a", "jpg", payload=b"x"))})
    loader = Loader([str(tmp_path / "s.tar")], batch_size=None, decode=Kept())
    assert loader[0] == next(iter(loader)) == {"key": "a"}
