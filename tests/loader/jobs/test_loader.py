"""``dsort.loader``: batches of all ranks, byte for byte, from any state, and what goes wrong."""

from __future__ import annotations

import gc
import io
import json
import os
import random
import sys
import tarfile
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import dsort
from dsort.loader import Loader
from dsort.options import RunOptions
from tests.support.container_kinds import KINDS, some_records
from tests.support.datasets import Shard, small_dataset, write_shards
from tests.support.engine import record
from tests.support.inline_runtime import run_inline
from tests.support.refusals import raises
from tests.support.seaweedfs import S3Server

SPEC = {
    "input_bck": "in",
    "output_bck": "out",
    "output_format": "out-%03d",
    "output_shard_records": 7,
    "algorithm": {"kind": "shuffle", "seed": 4},
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers_here: None) -> dsort.JobReport:
    monkeypatch.chdir(tmp_path)
    write_shards(tmp_path / "in", small_dataset(5))
    return dsort.run(SPEC)


def shards(directory: Path, counts: list[int], payload_bytes: int = 300) -> Path:
    directory.mkdir(exist_ok=True)
    rng = random.Random(str(counts))
    for shard, count in enumerate(counts):
        with tarfile.open(directory / f"s-{shard:02d}.tar", "w") as archive:
            for number in range(count):
                for extension, payload in (
                    ("cls", b"%d" % (number % 10)),
                    ("bin", rng.randbytes(rng.randrange(payload_bytes))),
                ):
                    info = tarfile.TarInfo(f"{shard}/{number:04d}.{extension}")
                    info.size = len(payload)
                    archive.addfile(info, io.BytesIO(payload))
    return directory


def content(sample: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in sample.items() if not name.startswith("__")}


def as_read(records: Iterator[dsort.ShardRecord]) -> list[tuple[str, dict[str, bytes]]]:
    return [
        (r.key, {name[len(r.key) + 1 :].lower(): x for name, x in r.members.items()})
        for r in records
    ]


def stream(loaders: list[Loader]) -> list[dict[str, Any]]:
    """The samples of an epoch in global order: step by step, rank by rank."""
    return [s for step in zip(*loaders, strict=True) for batch in step for s in batch]


def test_a_result_in_sequence_is_what_reading_it_gives(report: dsort.JobReport) -> None:
    wanted = as_read(dsort.read_shards(report))
    loader = Loader(report, batch_size=None, order="sequential")
    found = list(loader)
    assert [(s["__key__"], content(s)) for s in found] == wanted
    assert len(found) == report.records
    assert {s["__url__"].rpartition("/")[2] for s in found} == {
        r.shard for r in dsort.read_shards(report)
    }


def test_every_container_is_loaded(tmp_path: Path) -> None:
    for kind in KINDS:
        directory = tmp_path / kind.suffix[1:]
        directory.mkdir(exist_ok=True)
        if kind.beside is not None:
            (directory / kind.beside[0]).write_bytes(kind.beside[1])
        path = directory / f"shard-0{kind.suffix}"
        path.write_bytes(kind.write(some_records(4, 9)))
        loader = Loader([path], batch_size=2, order="window(2)", remainder="wrap", seed=1)
        found = sorted(
            (s["__key__"], sorted(content(s).items())) for batch in list(loader) for s in batch
        )
        wanted = [(key, sorted(x.items())) for key, x in as_read(dsort.read_shards(path))]
        assert len(found) == 10, kind  # one goes over to the next epoch
        assert [x for x in wanted if x not in found] == [], kind
        assert [x for x in found if x not in wanted] == [], kind
        item = loader[0][0]
        assert (item["__key__"], sorted(content(item).items())) in wanted, kind


@pytest.mark.parametrize("order", ["sequential", "shards", "window(2)"])
def test_a_block_of_more_shards_than_are_kept_open_is_read(tmp_path: Path, order: str) -> None:
    loader = Loader(shards(tmp_path / "in", [3] * 40), batch_size=4, order=order, threads=2, seed=1)
    found: list[str] = []

    def read() -> None:
        found.extend(sample["__key__"] for batch in loader for sample in batch)

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    reading.join(timeout=30)
    assert not reading.is_alive(), "its threads wait for each other"
    assert len(found) == len(set(found)) == 120


@pytest.mark.parametrize("order", ["shards", "window(3)"])
def test_it_goes_on_from_its_state_on_any_number_of_ranks(tmp_path: Path, order: str) -> None:
    bucket = shards(tmp_path / "in", [13, 40, 1, 29, 31, 5])
    whole = [s for b in Loader(bucket, order=order, seed=9, remainder="wrap") for s in b]
    rng = random.Random(order)
    state, found = None, []
    while len(found) < len(whole):
        world, size = rng.randrange(1, 5), rng.randrange(1, 6)
        ranks = [
            Loader(
                bucket,
                rank=rank,
                world_size=world,
                batch_size=size,
                order=order,
                seed=9,
                remainder="wrap",
                threads=2,
            )
            for rank in range(world)
        ]
        if state is not None:
            for each in ranks:
                each.load_state_dict(json.loads(json.dumps(state)))
        iterators = [iter(each) for each in ranks]
        for _ in range(rng.randrange(1, min(len(ranks[0]), 6) + 1)):
            found += [s for each in iterators for s in next(each)]
        (state,) = {json.dumps(each.state_dict()) for each in ranks}
        state = json.loads(state)
        for each in iterators:
            each.close()  # type: ignore[attr-defined]
    assert found[: len(whole)] == whole
    assert sorted(state) == ["epoch", "manifest", "records_seen", "seed"]


def test_items_by_number_are_those_in_order_for_any_thread(tmp_path: Path) -> None:
    bucket = shards(tmp_path / "in", [13, 40, 29])
    loader = Loader(bucket, batch_size=5, order="window(2)", rank=1, world_size=2)
    found: dict[int, Any] = {}
    threads = [
        threading.Thread(target=lambda at=at: found.update({at: loader[at]}))
        for at in range(len(loader))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[at] for at in range(len(loader))] == list(loader)


def test_each_for_is_the_next_epoch_and_one_that_ended_early_begins_again(tmp_path: Path) -> None:
    loader = Loader(shards(tmp_path / "in", [3] * 8), batch_size=None)
    first = next(iter(loader))
    assert loader.epoch == 0
    epochs = [[s["__key__"] for s in loader] for _ in range(3)]
    assert first["__key__"] == epochs[0][0]
    assert len({tuple(each) for each in epochs}) == 3
    assert len({tuple(sorted(each)) for each in epochs}) == 1
    loader.set_epoch(1)
    assert [s["__key__"] for s in loader] == epochs[1]


def test_the_last_step_is_dropped_filled_and_marked_or_goes_over(tmp_path: Path) -> None:
    bucket = shards(tmp_path / "in", [7, 6])

    def ranks(remainder: Any) -> list[Loader]:
        return [
            Loader(bucket, rank=r, world_size=2, batch_size=2, remainder=remainder, seed=2)
            for r in (0, 1)
        ]

    assert [len(each) for each in ranks("drop_last")] == [3, 3]
    padded = stream(ranks("pad"))
    assert [s.get("__padding__", False) for s in padded] == [False] * 13 + [True] * 3
    assert [s["__key__"] for s in padded[13:]] == [s["__key__"] for s in padded[:3]]
    both = ranks("wrap")
    keys = [s["__key__"] for s in stream(both)]
    assert len(keys) == 16
    assert len(set(keys[:13])) == 13
    assert both[0].state_dict()["records_seen"] == 3
    keys += [s["__key__"] for s in stream(both)]
    assert len(set(keys[13:26])) == 13
    small = Loader(bucket, batch_size=20)
    with raises(dsort.InputError, "20"):
        list(small)


def test_samples_are_decoded_by_name(tmp_path: Path) -> None:
    picture = io.BytesIO()
    Image.new("RGB", (4, 3), (255, 0, 128)).save(picture, "PNG")
    array = io.BytesIO()
    np.save(array, np.arange(3))
    path = tmp_path / "s.tar"
    with tarfile.open(path, "w") as archive:
        for name, payload in (
            ("a.png", picture.getvalue()),
            ("a.json", b'{"x": [1]}'),
            ("a.txt", "ä".encode()),
            ("a.npy", array.getvalue()),
            ("a.cls", b"7"),
            ("a.raw", b"\0"),
        ):
            info = tarfile.TarInfo(name)
            info.size = len(payload)
            archive.addfile(info, io.BytesIO(payload))
    (sample,) = Loader([path], batch_size=None, decode="rgb json txt npy cls")
    assert sample["png"].shape == (3, 4, 3)
    assert sample["png"].dtype == np.float32
    assert sample["png"][0, 0].tolist() == [1.0, 0.0, np.float32(128 / 255)]
    assert (sample["json"], sample["txt"], sample["cls"]) == ({"x": [1]}, "ä", 7)
    assert sample["npy"].tolist() == [0, 1, 2]
    assert sample["raw"] == b"\0"
    (sample,) = Loader([path], batch_size=None, decode="torchrgb8")
    assert sample["png"].shape == (3, 3, 4)
    (sample,) = Loader([path], batch_size=None, decode=lambda s: {"n": len(s["png"])})
    assert sample == {"n": len(picture.getvalue())}
    path.write_bytes(path.read_bytes().replace("ä".encode(), b"\xff\xff"))
    with raises(dsort.InputError, "record a", "s.tar", "txt"):
        list(Loader([path], decode=["txt"]))
    with raises(dsort.SpecError, "jpg", paths=["decode"]):
        Loader([path], decode="jpg")


def test_a_shard_that_is_missing_changed_or_cut_off_names_itself(
    report: dsort.JobReport, tmp_path: Path
) -> None:
    path = tmp_path / "out" / "out-000.tar"
    data = path.read_bytes()

    def wrong(change: Any, kind: type[Exception]) -> None:
        change()
        for at in range(2):  # by the whole stream, and by one item
            loader = Loader(report, batch_size=None, order="sequential", cache="")
            with raises(kind, "out-000.tar"):
                list(loader) if at == 0 else [loader[number] for number in range(7)]
        path.write_bytes(data)

    wrong(path.unlink, dsort.ObjectNotFoundError)
    wrong(lambda: path.write_bytes(data[:-2048]), dsort.ChangedInputError)
    flipped = bytearray(data)
    flipped[600] ^= 1  # in a payload: nothing but the checksum of the manifest shows it
    path.write_bytes(bytes(flipped))
    with raises(dsort.ChangedInputError, "out-000.tar"):
        list(Loader(report, batch_size=None, order="sequential", cache=""))


def test_a_result_with_records_of_links_alone_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with tarfile.open(tmp_path / "in" / "in-0.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("a.jpg"))
        link = tarfile.TarInfo("b.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "a.jpg"
        archive.addfile(link)
    report = run_inline(SPEC, tmp_path)
    options = RunOptions(root=tmp_path)
    with pytest.raises(dsort.ChangedInputError) as caught:
        list(Loader(report, batch_size=None, options=options))
    assert "stray_members" in caught.value.hint
    kept = run_inline({**SPEC, "stray_members": "drop", "overwrite": True}, tmp_path)
    found = [sample["__key__"] for sample in Loader(kept, batch_size=None, options=options)]
    assert found == ["a"]


def test_a_shard_that_changes_between_two_epochs_is_refused(tmp_path: Path) -> None:
    bucket = shards(tmp_path / "in", [9, 9])
    loader = Loader(bucket, batch_size=None)
    list(loader)
    path = bucket / "s-01.tar"
    path.write_bytes(path.read_bytes())
    with raises(dsort.ChangedInputError, "s-01.tar"):
        list(loader)


def test_an_iterator_that_is_let_go_of_leaves_no_thread_and_no_file(tmp_path: Path) -> None:
    bucket = shards(tmp_path / "in", [20] * 8)
    before = set(threading.enumerate())

    def failing(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["cls"] == b"7":
            raise RuntimeError("of the user's own")
        return sample

    for _ in range(3):
        loader = Loader(bucket, batch_size=4, decode=str_of)
        iterator = iter(loader)
        next(iterator)
        del iterator
        with pytest.raises(RuntimeError, match="of the user's own"):
            list(Loader(bucket, batch_size=4, decode=failing))
    assert set(threading.enumerate()) == before
    del loader
    gc.collect()
    open_files = [os.path.realpath(path) for path in Path("/proc/self/fd").iterdir()]
    assert [path for path in open_files if path.startswith(str(bucket))] == []


def str_of(sample: dict[str, Any]) -> dict[str, Any]:
    return {name: str(value) for name, value in sample.items()}


def test_the_index_of_a_shard_is_made_once_and_read_by_ranges_after_that(
    report: dsort.JobReport, tmp_path: Path
) -> None:
    first = list(Loader(report, batch_size=3, remainder="wrap"))
    kept = list((tmp_path / "cache").rglob("*.col"))
    assert len(kept) == len(list(Path("out").glob("*.tar")))
    assert list(Loader(report, batch_size=3, remainder="wrap")) == first
    for path in kept:  # what is damaged is made anew
        path.write_bytes(path.read_bytes()[:-9])
    assert list(Loader(report, batch_size=3, remainder="wrap")) == first


def test_check_counts_what_the_next_batches_hold(tmp_path: Path) -> None:
    bucket = shards(tmp_path / "in", [20, 20, 20])
    found = Loader(bucket, batch_size=10, world_size=2, remainder="pad").check(99)
    assert (found.steps, found.records, found.duplicates, found.coverage) == (3, 60, 0, 1.0)
    assert found.neighbours > 0.9
    mixed = Loader(bucket, batch_size=10, order="window(3)").check(2)
    assert mixed.neighbours < 0.6
    assert mixed.shards_a_step > 2


def test_a_loader_says_what_it_loads_without_reading_it(tmp_path: Path) -> None:
    bucket = shards(tmp_path / "in", [20, 20])
    said = repr(Loader(bucket, batch_size=10, rank=1, world_size=2, order="window(3)", seed=5))
    assert said.startswith(f"<Loader of a Dataset of 2 shards in file://{tmp_path}/in: window(3),")
    assert said.endswith(" seed 5, epoch 0, rank 1 of 2, batches of 10>")


def test_a_state_of_another_dataset_order_or_seed_is_refused(tmp_path: Path) -> None:
    bucket = shards(tmp_path / "in", [9, 9])
    state = Loader(bucket, seed=1).state_dict()
    for other in (
        Loader(shards(tmp_path / "other", [9, 8]), seed=1),
        Loader(bucket, seed=1, order="window(2)"),
        Loader(bucket, seed=2),
    ):
        with raises(dsort.InputError):
            other.load_state_dict(state)
    with raises(dsort.InputError):
        Loader(bucket).load_state_dict({"epoch": "1"})
    with raises(dsort.SpecError, paths=["rank"]):
        Loader(bucket, rank=2, world_size=2)
    with raises(dsort.SpecError, "windows", paths=["order"]):
        Loader(bucket, order="windows")


def test_pytorch_takes_it_for_an_iterable_dataset_whose_workers_share_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class IterableDataset:  # what its DataLoader asks for
        pass

    worker: list[Any] = [None]
    torch = types.ModuleType("torch.utils.data")
    torch.IterableDataset = IterableDataset  # type: ignore[attr-defined]
    torch.get_worker_info = lambda: worker[0]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.data", torch)
    bucket = shards(tmp_path / "in", [20, 11])
    wanted = list(Loader(bucket, batch_size=3, remainder="wrap"))
    loader = Loader(bucket, batch_size=3, remainder="wrap")
    assert isinstance(loader, IterableDataset)
    assert isinstance(loader, Loader)
    found: dict[int, Any] = {}
    for each in (0, 1, 2):
        worker[0] = types.SimpleNamespace(id=each, num_workers=3)
        own = Loader(bucket, batch_size=3, remainder="wrap")
        first = iter(own)
        found[each] = next(first)
        state = own.state_dict()  # and it goes on from there, as a StatefulDataLoader has it
        again = Loader(bucket, batch_size=3, remainder="wrap")
        again.load_state_dict(state)
        found.update({each + 3 * turn: x for turn, x in enumerate(again, 1)})
    assert [found[at] for at in sorted(found)] == wanted
    make, arguments = loader.__reduce__()  # for a process that is no fork
    worker[0] = None
    assert list(make(*arguments)) == wanted


def test_a_dataset_in_a_store_is_loaded(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint_url)
    local = shards(tmp_path / "in", [30, 20], 60_000)
    bucket, client = s3.new_bucket_name(), s3.client()
    client.create_bucket(Bucket=bucket)
    for path in local.iterdir():
        client.put_object(Bucket=bucket, Key=path.name, Body=path.read_bytes())
    wanted = [content(s) for b in Loader(local, batch_size=5) for s in b]
    for _ in range(2):  # reading forward, then by the index that was made
        found = [content(s) for b in Loader(f"s3://{bucket}", batch_size=5) for s in b]
        assert found == wanted


def test_a_decoder_may_be_empty(tmp_path: Path) -> None:
    class Kept(dict[str, Any]):
        def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
            return {"key": sample["__key__"]}

    write_shards(tmp_path, {"s.tar": Shard(record("a", "jpg", payload=b"x"))})
    loader = Loader([str(tmp_path / "s.tar")], batch_size=None, decode=Kept())
    assert loader[0] == next(iter(loader)) == {"key": "a"}
