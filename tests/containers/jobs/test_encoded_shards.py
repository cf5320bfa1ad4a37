"""Jobs over compressed shards: what comes out is what went in, whatever is around it."""

from __future__ import annotations

import io
import json
import random
import tarfile
import zipfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import webdataset
import xxhash
import zstandard

import dsort
from dsort import api
from dsort.errors import CorruptShardError, SpecError
from dsort.loader import Loader
from dsort.options import RunOptions
from dsort.storage.directory.bucket import LocalBucket
from tests.support.commands import CommandLine
from tests.support.datasets import END, Member, Shard, small_dataset, tree_of
from tests.support.encoded_files import WRITTEN, encoded, judged, made_elsewhere
from tests.support.engine import count_of, plan_local, refused, run_local, spec_of
from tests.support.inline_runtime import Moved, run_inline
from tests.support.refusals import raises
from tests.support.store_like import StoreLikeBucket

SHUFFLE = {"algorithm": {"kind": "shuffle", "seed": 7}, "verify": "content"}
OUT = {".gz": ".tgz", ".zst": ".tar.zst", ".lz4": ".tar.lz4"}


def dataset() -> dict[str, bytes]:
    """Plain tars by their stems."""
    return {name.removesuffix(".tar"): shard.data for name, shard in small_dataset(5).items()}


def stored(root: Path, files: dict[str, bytes], bucket: str = "in") -> list[str]:
    """``files`` in a bucket; their names."""
    (root / bucket).mkdir(exist_ok=True)
    for name, data in files.items():
        (root / bucket / name).write_bytes(data)
    return sorted(files)


def members_of(tars: list[bytes], tmp_path: Path) -> Counter[tuple[str, bytes]]:
    """What Python's ``tarfile`` finds in plain tars."""
    found: Counter[tuple[str, bytes]] = Counter()
    for data in tars:
        path = tmp_path / "one.tar"
        path.write_bytes(data)
        with tarfile.open(path) as tar:
            for each in tar:
                file = tar.extractfile(each)
                found[each.name, b"" if file is None else file.read()] += 1
    return found


def outputs(root: Path, suffix: str) -> list[bytes]:
    """The files in the output bucket, in order."""
    return [path.read_bytes() for path in sorted((root / "out").glob(f"out-*{suffix}"))]


def manifest(root: Path) -> dict[str, Any]:
    (path,) = (root / "out" / ".dsort").glob("*/manifest.json")
    found: dict[str, Any] = json.loads(path.read_bytes())
    return found


def check(root: Path) -> None:
    """`dsort verify` finds nothing wrong."""
    (path,) = (root / "out" / ".dsort").glob("*/manifest.json")
    assert api.verify(path.read_bytes(), options=RunOptions(root=root)).problems == ()


@pytest.mark.parametrize("suffix", WRITTEN)
def test_stores_that_take_bytes_in_order_get_the_same(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = {f"{stem}.tar": data for stem, data in dataset().items()}
    found = []
    for kind in (LocalBucket, lambda path, **more: StoreLikeBucket(LocalBucket(path, **more))):
        root = tmp_path / str(len(found))
        root.mkdir()
        spec = spec_of(
            input_format={"objnames": stored(root, plain)}, output_extension=OUT[suffix], **SHUFFLE
        )
        monkeypatch.setattr("dsort.storage.open.LocalBucket", kind)
        report = run_inline(spec, root, Moved("spill", buffer_bytes=4096))
        found.append((outputs(root, OUT[suffix]), report.totals.file_bytes))
        monkeypatch.undo()
    assert found[0] == found[1]


AISTORE = (".tar", ".tgz", ".tar.lz4", ".zip")
"""The formats of AIStore's dSort, which crashes on some pairs of them."""


def zipped(tar: bytes) -> bytes:
    """The files of a tar, deflated, as AIStore's dSort writes them."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive, tarfile.open(fileobj=io.BytesIO(tar)) as members:
        for each in members:
            file = members.extractfile(each)
            assert file is not None
            archive.writestr(each.name, file.read(), zipfile.ZIP_DEFLATED)
    return made.getvalue()


def files_in(suffix: str, data: bytes) -> list[tuple[str, bytes]]:
    """(name, content) of the files of a shard, as others read it."""
    if suffix == ".zip":
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return [(name, archive.read(name)) for name in archive.namelist()]
    codec = suffix.replace(".tgz", ".gz").removeprefix(".tar")
    tar = judged(codec, data) if codec else data
    with tarfile.open(fileobj=io.BytesIO(tar)) as members:
        return [(each.name, members.extractfile(each).read()) for each in members]  # type: ignore[union-attr]


@pytest.mark.sample(keep=4)
@pytest.mark.parametrize("to", AISTORE)
@pytest.mark.parametrize("source", AISTORE)
def test_each_format_of_aistore_becomes_each_other(tmp_path: Path, source: str, to: str) -> None:
    plain = dataset()
    makers: dict[str, Callable[[bytes], bytes]] = {
        ".tar": bytes,
        ".tgz": partial(made_elsewhere, ".gz"),
        ".tar.lz4": partial(made_elsewhere, ".lz4"),
        ".zip": zipped,
    }
    files = {f"{stem}{source}": makers[source](data) for stem, data in plain.items()}
    spec = spec_of(
        input_format={"objnames": stored(tmp_path, files)},
        output_extension=to,
        algorithm={"kind": "alphanumeric"},
    )
    run_inline(spec, tmp_path, Moved("spill"))
    found = [each for data in outputs(tmp_path, to) for each in files_in(to, data)]
    expected = [each for data in plain.values() for each in files_in(".tar", data)]
    assert sorted(found) == sorted(expected)
    keys = [name.split(".")[0] for name, _ in found]
    assert keys == sorted(keys)
    check(tmp_path)


def test_names_without_a_suffix_are_decoded_as_the_spec_says(tmp_path: Path) -> None:
    plain = dataset()
    names = stored(tmp_path, {stem: encoded(".gz", data) for stem, data in plain.items()})
    spec = spec_of(
        input_format={"objnames": names}, input_extension=".tgz", output_extension=".tar"
    )
    run_inline(spec, tmp_path, Moved("spill"))
    assert members_of(outputs(tmp_path, ".tar"), tmp_path) == members_of(
        [*plain.values()], tmp_path
    )
    check(tmp_path)


def test_webdataset_reads_all_of_a_tgz_that_was_written(tmp_path: Path) -> None:
    payload = {f"{n:03d}": bytes([n % 251]) * 9000 for n in range(400)}
    shard = Shard(tuple(Member(f"{key}.bin", data) for key, data in payload.items()))
    stored(tmp_path, {"s-0.tar": shard.data})
    spec = spec_of(
        input_format={"template": "s-{0..0}"}, output_format="out-%d.tgz", output_shard_records=400
    )
    run_inline(spec, tmp_path)
    found = webdataset.WebDataset(str(tmp_path / "out" / "out-0.tgz"), shardshuffle=False)
    assert {sample["__key__"]: sample["bin"] for sample in found} == payload


def test_encoded_inputs_are_decoded_once_and_cannot_be_mapped(tmp_path: Path) -> None:
    names = stored(tmp_path, {f"{s}.tgz": encoded(".gz", d) for s, d in dataset().items()})
    plan = plan_local(tmp_path, spec_of(input_format={"objnames": names}))
    assert plan.run.move == "spill"
    assert "the inputs are compressed: they are decoded once, to about" in plan.plan.move_reason
    with raises(SpecError, hint="--move spill"):
        plan_local(tmp_path, spec_of(input_format={"objnames": names}), move="map")


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-1],
        lambda data: data + b"?",
        lambda data: data[:-6] + b"!" + data[-5:],
        lambda data: b"",
    ],
)
def test_an_input_that_is_not_whole_ends_the_job_before_anything_is_written(
    tmp_path: Path, change: Any
) -> None:
    tar = Shard((Member("a.bin", b"x" * 5000),)).data
    data = change(encoded(".gz", tar))
    spec = spec_of(input_format={"objnames": stored(tmp_path, {"s-0.tgz": data})})
    if not data:
        with pytest.raises(dsort.DsortError):
            run_inline(spec, tmp_path, Moved("spill"))
        return
    with refused(tmp_path, CorruptShardError, "s-0.tgz"):
        run_inline(spec, tmp_path, Moved("spill"))
    report = run_inline({**spec, "corrupt_shards": "skip"}, tmp_path, Moved("spill"))
    assert count_of(report, "corrupt_shards")[0] == 1


def test_a_shard_under_a_wrong_name_is_called_what_it_is(tmp_path: Path) -> None:
    tar = Shard((Member("a.bin", b"x" * 5000),)).data
    names = stored(tmp_path, {"s-0.tar": encoded(".gz", tar), "t-0.tgz": tar})
    with refused(tmp_path, CorruptShardError, "s-0.tar", "gzip", ".gz"):
        run_inline(spec_of(input_format={"objnames": names[:1]}), tmp_path)
    with refused(tmp_path, CorruptShardError, "t-0.tgz", "gzip"):
        run_inline(spec_of(input_format={"objnames": names[1:]}), tmp_path, Moved("spill"))


def test_a_bomb_is_refused_and_data_that_shrinks_as_much_is_not(tmp_path: Path) -> None:
    tar = Shard((Member("a.bin", bytes(40 << 20)),)).data
    names = stored(tmp_path, {"s-0.tar.zst": made_elsewhere(".zst", tar)})
    spec = spec_of(input_format={"objnames": names}, output_extension=".tar")
    with refused(tmp_path, CorruptShardError, "s-0.tar.zst", "max_expansion"):
        run_inline(spec, tmp_path, Moved("spill"))
    assert tree_of(tmp_path / "out").keys() >= {".dsort/"}
    run_inline({**spec, "max_expansion": 100_000}, tmp_path, Moved("spill"))
    (out,) = outputs(tmp_path, ".tar")
    assert out.rstrip(b"\0") == tar.rstrip(b"\0")
    assert out.endswith(END)


def test_verify_reads_what_the_job_read_unless_it_is_to_read_less(tmp_path: Path) -> None:
    data = made_elsewhere(".zst", Shard((Member("a.bin", bytes(40 << 20)),)).data)
    names = stored(tmp_path, {"one": data, "two": data})  # their names say no codec
    spec = spec_of(
        input_format={"objnames": names},
        input_extension=".tar.zst",
        output_extension=".tar.zst",
        max_expansion=100_000,
        duplicate_keys="rename",
    )
    run_inline(spec, tmp_path, Moved("spill"))
    check(tmp_path)
    (path,) = (tmp_path / "out" / ".dsort").glob("*/manifest.json")
    report = api.verify(path.read_bytes(), options=RunOptions(root=tmp_path), max_expansion=200)
    found = {each.shard for each in report.problems if each.kind == "corrupt_shard"}
    assert found == {"one", "two", "out-0.tar.zst"}
    assert "decodes to more" in report.problems[0].text


def long_frame(tar: bytes) -> bytes:
    """As ``zstd --long=27`` has it: what comes may be a reference to 128 MiB before."""
    chosen = zstandard.ZstdCompressionParameters(window_log=27, enable_ldm=True)
    stream = zstandard.ZstdCompressor(compression_params=chosen).compressobj()
    data = stream.compress(tar) + stream.flush()
    assert zstandard.get_frame_parameters(data).window_size == 128 << 20
    return data


def test_frames_that_refer_back_far_are_read_with_memory_for_that(
    tmp_path: Path, cli: CommandLine
) -> None:
    same = random.Random(7).randbytes(100_000)
    tar = Shard((Member("a.bin", same), Member("b.bin", bytes(70 << 20)), Member("c.bin", same)))
    data = long_frame(tar.data)
    assert len(data) < 150_000  # or nothing of it refers back far
    names = stored(tmp_path, {"s-0.tar.zst": data})
    spec = spec_of(input_format={"objnames": names}, output_extension=".tar", max_expansion=100_000)
    run_local(tmp_path, spec, memory_max_bytes=1 << 30)
    little, enough = (
        RunOptions(root=tmp_path, memory_max_bytes=size) for size in (256 << 20, 512 << 20)
    )
    (path,) = (tmp_path / "out" / ".dsort").glob("*/manifest.json")
    assert api.verify(path.read_bytes(), options=enough).problems == ()
    problems = api.verify(path.read_bytes(), options=little).problems
    assert [each.kind for each in problems[:1]] == ["corrupt_shard"]
    assert "memory_max_bytes" in problems[0].text
    assert cli("verify", str(path)).code != 0
    assert cli("verify", str(path), "--max-memory", "512MB").code == 0
    (shard,) = (tmp_path / "in").iterdir()
    read = dsort.read_shards(shard, options=enough, max_expansion=100_000)
    assert [each.key for each in read] == ["a", "b", "c"]
    with raises(CorruptShardError, "memory_max_bytes", shard="s-0.tar.zst", offset=0):
        list(dsort.read_shards(shard, options=little, max_expansion=100_000))
    loader = Loader(shard, batch_size=None, max_expansion=100_000)
    assert {sample["__key__"]: xxhash.xxh3_64_hexdigest(sample["bin"]) for sample in loader} == {
        key: xxhash.xxh3_64_hexdigest(content)
        for key, content in {"a": same, "b": bytes(70 << 20), "c": same}.items()
    }


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"output_extension": ".tar.bz2"}, "output_extension"),
        ({"output_extension": ".tar.xz"}, "output_extension"),
        ({"output_extension": ".tgz", "output_compression_level": 10}, "output_compression_level"),
        ({"output_compression_level": 1}, "output_compression_level"),
    ],
)
def test_what_codecs_cannot_do_is_refused_with_the_spec(fields: dict[str, Any], path: str) -> None:
    from dsort.spec.load import parse_spec

    spec = spec_of(input_format={"template": "s-{0..0}.tar"}, **fields)
    with raises(SpecError, paths=[path]):
        parse_spec({name: value for name, value in spec.items() if value is not None})
