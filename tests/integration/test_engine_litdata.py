"""Jobs from LitData to LitData: items are moved as they are, and a reader that was written from the
text of the format finds all of them by the index."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dsort import api
from dsort.errors import SchemaError
from dsort.options import RunOptions
from tests.support.datasets import files_of
from tests.support.engine import run_local, spec_of
from tests.support.litdata_reader import CONFIG, read_litdata, write_litdata

JOB: dict[str, Any] = {
    "input_format": {"template": "chunk-0-{0..2}"},
    "input_extension": ".bin",
    "output_format": "chunk-0-%d",
    "output_shard_records": 40,
    "algorithm": {"kind": "shuffle", "seed": 7},
}


def some_chunks(directory: Path, count: int = 30) -> list[tuple[bytes, int]]:
    items = [(bytes([n]) * 31 * (n % 9), n) for n in range(3 * count)]
    chunks = {f"chunk-0-{n}.bin": items[n * count : (n + 1) * count] for n in range(3)}
    write_litdata(directory, chunks)
    return items


def test_items_are_shuffled_as_they_are_whatever_the_movement_and_the_workers(
    tmp_path: Path,
) -> None:
    everything = some_chunks(tmp_path / "in")
    outputs = []
    for bucket, move, workers in (("o1", "map", 2), ("o2", "spill", 1)):
        spec = spec_of(**{**JOB, "output_bck": bucket}, verify="content")
        run_local(tmp_path, spec, move=move, workers=workers)
        found = read_litdata(tmp_path / bucket)
        assert sorted(found, key=lambda item: item[1]) == everything
        assert found != everything
        outputs.append(files_of(tmp_path / bucket, "*"))
        (manifest,) = (tmp_path / bucket / ".dsort").glob("*/manifest.json")
        assert not api.verify(manifest.read_bytes(), options=RunOptions(root=tmp_path)).problems
    assert outputs[0] == outputs[1]
    config = json.loads(outputs[0]["index.json"])["config"]
    assert config["data_spec"] == CONFIG["data_spec"]


def test_other_chunks_have_another_index_to_tell_caches_so(tmp_path: Path) -> None:
    some_chunks(tmp_path / "in")
    made = []
    for seed in (1, 2):
        order = {"kind": "shuffle", "seed": seed}
        run_local(tmp_path, spec_of(**{**JOB, "output_bck": f"o{seed}", "algorithm": order}))
        made.append(json.loads((tmp_path / f"o{seed}" / "index.json").read_bytes())["updated_at"])
    assert made[0] != made[1]


def test_chunks_without_their_index_are_refused(tmp_path: Path) -> None:
    some_chunks(tmp_path / "in")
    (tmp_path / "in" / "index.json").unlink()
    with pytest.raises(SchemaError, match=r"there is no index\.json in"):
        run_local(tmp_path, spec_of(**JOB))
    (tmp_path / "in" / "index.json").write_bytes(b"{}")
    with pytest.raises(SchemaError, match="no index of LitData"):
        run_local(tmp_path, spec_of(**JOB))


def test_directories_whose_items_differ_are_refused(tmp_path: Path) -> None:
    for name, leaves in (("a", ["bytes", "int"]), ("b", ["bytes", "float"])):
        write_litdata(
            tmp_path / "in" / name,
            {"chunk-0-0.bin": [(b"x", 1)]},
            {**CONFIG, "data_format": leaves},
        )
    spec = spec_of(**{**JOB, "input_format": {"objnames": ["a/chunk-0-0.bin", "b/chunk-0-0.bin"]}})
    with pytest.raises(SchemaError, match=r"b/index\.json in .* has the data_format"):
        run_local(tmp_path, spec)
