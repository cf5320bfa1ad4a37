"""Slices of payload are valid until the next ones are asked for: no sink holds on to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.datasets import files_of, small_dataset, write_shards
from tests.support.engine import spec_of
from tests.support.inline_runtime import Moved, run_inline
from tests.support.internals import MappedPayload

SPECS: dict[str, dict[str, Any]] = {
    "as they are": {},
    "checked": {"verify": "content"},
    "encoded": {"output_extension": ".tar.zst"},
    "with sidecars": {"index": ["wids", "dali"]},
    "converted": {"outputs": [{"name": "a", "output_extension": ".zip"}, {"name": "b"}]},
}


@pytest.mark.parametrize("name", SPECS)
def test_output_shards_do_not_depend_on_what_becomes_of_slices(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_shards(tmp_path / "in", small_dataset("slices", shards=4, records=30))
    fields = dict(SPECS[name])
    if "outputs" in fields:
        fields["outputs"] = [{**each, "fraction": 0.5} for each in fields["outputs"]]
        fields["output_format"] = "{split}/s-%d"
    spec = spec_of(algorithm={"kind": "shuffle", "seed": 7}, **fields)
    run_inline(spec, tmp_path, Moved("map"))
    wanted = files_of(tmp_path / "out")
    slices, steps = MappedPayload.slices, 0

    def overwritten(
        payload: MappedPayload, start: int, stop: int
    ) -> Iterator[Sequence[memoryview]]:
        nonlocal steps
        for row in range(start, stop):
            for some in slices(payload, row, row + 1):
                copies = [bytearray(each) for each in some]
                yield [memoryview(each) for each in copies]
                steps += 1
                for each in copies:
                    each[:] = bytes(len(each))

    monkeypatch.setattr(MappedPayload, "slices", overwritten)
    run_inline(spec, tmp_path, Moved("map"), overwrite=True)
    assert files_of(tmp_path / "out") == wanted
    assert steps >= 120
