"""Jobs from LitData to LitData: items are moved as they are, and a reader that was written from the
text of the format finds all of them by the index."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dsort import api
from dsort.errors import ConversionError, SchemaError
from dsort.options import RunOptions
from tests.support.datasets import Member, Shard, files_of, read_shard, write_shards
from tests.support.engine import run_local, spec_of
from tests.support.litdata_reader import CONFIG, leaves_in, read_litdata, write_litdata

pytestmark = pytest.mark.usefixtures("workers_here")

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


@pytest.mark.usefixtures("worker_processes")
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


TARS: dict[str, Any] = {
    "input_format": {"template": "a-{0..1}"},
    "output_extension": ".bin",
    "output_format": "chunk-0-%d",
    "output_shard_records": 4,
    "algorithm": {"kind": "shuffle", "seed": 7},
}


def some_tars(directory: Path) -> dict[str, bytes]:
    members = {
        f"{shard}/{n}.{extension}": f"{shard}{n}{extension}".encode() * (n % 5)
        for shard in range(2)
        for n in range(6)
        for extension in ("jpg", "Cls", "seg.png", "txt")
    }
    for shard in range(2):
        own = [Member(name, data) for name, data in members.items() if name[0] == str(shard)]
        write_shards(directory, {f"a-{shard}.tar": Shard(tuple(own))})
    return members


def members_of(path: Path) -> dict[str, bytes]:
    return {stored.name: stored.payload for stored in read_shard(path.read_bytes())}


@pytest.mark.parametrize(("move", "workers"), [("map", 2), ("spill", 1)])
def test_tars_become_items_and_come_back_as_they_were(
    tmp_path: Path, move: Any, workers: int
) -> None:
    members = some_tars(tmp_path / "in")
    run_local(tmp_path, spec_of(**TARS), move=move, workers=workers)
    items = leaves_in(tmp_path / "out")
    assert [*items[0]] == ["Cls", "__key__", "jpg", "seg.png", "txt"]
    found = {
        f"{item['__key__'].decode()}.{name}": value
        for item in items
        for name, value in item.items()
        if name != "__key__"
    }
    assert found == members
    config = json.loads((tmp_path / "out" / "index.json").read_bytes())["config"]
    assert config["data_format"] == ["str", "str", "jpeg", "bytes", "str"]
    (manifest,) = (tmp_path / "out" / ".dsort").glob("*/manifest.json")
    assert not api.verify(manifest.read_bytes(), options=RunOptions(root=tmp_path)).problems
    back = spec_of(
        input_bck="out",
        output_bck="back",
        input_format={"template": "chunk-0-{0..2}"},
        input_extension=".bin",
        output_extension=".tar",
        output_format="b-%d",
        output_shard_records=100,
        algorithm={"kind": "none"},
    )
    run_local(tmp_path, back, move=move, workers=workers)
    assert members_of(tmp_path / "back" / "b-0.tar") == members


def test_numbers_of_items_become_text(tmp_path: Path) -> None:
    items = some_chunks(tmp_path / "in", 2)
    spec = spec_of(**{**JOB, "output_extension": ".tar", "output_format": "b-%d"})
    run_local(tmp_path, spec)
    found = members_of(tmp_path / "out" / "b-0.tar")
    for number, (image, label) in enumerate(items):
        key = f"chunk-0-{number // 2}-{number % 2:09d}"
        assert (found[f"{key}.0"], found[f"{key}.1"]) == (image, b"%d" % label)


def test_records_that_lack_a_leaf_are_refused_by_name(tmp_path: Path) -> None:
    shard = Shard((Member("a.jpg", b"1"), Member("a.cls", b"2"), Member("b.jpg", b"3")))
    write_shards(tmp_path / "in", {"a-0.tar": shard, "a-1.tar": shard})
    with pytest.raises(ConversionError, match=r"record b has no member \.cls, unlike record a"):
        run_local(tmp_path, spec_of(**TARS))
