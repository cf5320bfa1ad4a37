"""Jobs from and to MDS and LitData: samples are moved as they are, and readers that were written
from the texts of the formats find all of them by the index."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import zstandard

from dsort import api
from dsort.errors import ConversionError, NamesTakenError, SchemaError, SpecError
from dsort.options import RunOptions
from dsort.spec.load import parse_spec
from tests.support.datasets import Member, Shard, files_of, read_shard, tree_of, write_shards
from tests.support.engine import count_of, run_local, spec_of
from tests.support.litdata_reader import CONFIG, leaves_in, read_litdata, write_litdata
from tests.support.mds_by_the_text import samples_in
from tests.support.mds_writer import write_mds
from tests.support.refusals import raises

pytestmark = pytest.mark.usefixtures("workers_here")


COLUMNS = {"id": "str", "image": "bytes", "label": "int"}
JOB: dict[str, Any] = {
    "input_format": {"template": "shard.{00000..00002}"},
    "input_extension": ".mds",
    "output_format": "train/shard.%05d",
    "output_shard_records": 7,
    "algorithm": {"kind": "shuffle", "seed": 7},
}
TARS: dict[str, Any] = {
    "input_format": {"template": "a-{0..1}"},
    "output_extension": ".mds",
    "output_shard_records": 4,
}


def some_samples(directory: Path, count: int = 9) -> list[dict[str, Any]]:
    samples: list[dict[str, Any]] = [
        {"id": f"id-{n}", "image": bytes([n % 251]) * 400 * (n % 7), "label": n}
        for n in range(3 * count)
    ]
    parts = {f"shard.{n:05d}.mds": samples[n * count : (n + 1) * count] for n in range(3)}
    write_mds(directory, COLUMNS, parts)
    return samples


def by_label(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(samples, key=lambda sample: int(sample["label"]))


@pytest.mark.usefixtures("worker_processes")
def test_samples_are_shuffled_as_they_are_whatever_the_movement_and_the_workers(
    tmp_path: Path,
) -> None:
    everything = some_samples(tmp_path / "in", 300)
    sizes = {"output_shard_records": 370}
    outputs = []
    # The least memory parts the records, so that shards are written across partitions.
    for bucket, move, workers, memory in (("o1", "map", 2, ""), ("o2", "spill", 1, "1KB")):
        limit = {"max_mem_usage": memory} if memory else {}
        spec = spec_of(**{**JOB, "output_bck": bucket, **sizes, **limit}, verify="content")
        report = run_local(tmp_path, spec, move=move, workers=workers)
        assert verified(tmp_path, bucket) == ()
        found = list(samples_in(tmp_path / bucket / "train"))
        assert by_label(found) == everything
        assert found != everything
        files = files_of(tmp_path / bucket / "train", "*")
        assert report.totals.file_bytes == sum(len(files[n]) for n in files if n.endswith(".mds"))
        assert sorted(files) == ["index.json", *(f"shard.{n:05d}.mds" for n in range(3))]
        outputs.append(files)
    assert outputs[0] == outputs[1]


def test_an_index_that_says_something_else_does_not_verify(tmp_path: Path) -> None:
    some_samples(tmp_path / "in")
    run_local(tmp_path, spec_of(**JOB))
    path = tmp_path / "out" / "train" / "index.json"
    right = path.read_bytes()
    assert verified(tmp_path, "out") == ()
    for wrong in (right.replace(b'"samples": ', b'"samples": 1'), b"{}"):
        path.write_bytes(wrong)
        (problem,) = verified(tmp_path, "out")
        assert (problem.kind, problem.shard) == ("index", "train/index.json")
    path.unlink()
    (problem,) = verified(tmp_path, "out")
    assert problem.text == "is not there"


@pytest.mark.parametrize("suffix", [".gz", ".zstd"])
def test_compressed_shards_are_read_and_written_with_an_index_that_says_so(
    tmp_path: Path, suffix: str
) -> None:
    everything = some_samples(tmp_path / "in")
    for path in (tmp_path / "in").glob("*.mds"):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    spec = spec_of(**{**JOB, "input_extension": ".mds.gz"}, output_extension=f".mds{suffix}")
    run_local(tmp_path, spec)
    directory = tmp_path / "out" / "train"
    assert verified(tmp_path, "out") == ()
    index = json.loads((directory / "index.json").read_bytes())
    for shard in index["shards"]:
        assert (shard["compression"], shard["hashes"]) == (suffix[1:], [])
        path = directory / shard["zip_data"]["basename"]
        assert shard["zip_data"]["bytes"] == path.stat().st_size
        if suffix == ".zstd":  # the zstd package, which MosaicML uses, reads all frames; this one
            with zstandard.open(path) as file:  # wants one
                data = zstandard.compress(file.read())
            shard["zip_data"]["bytes"] = path.write_bytes(data)
    (directory / "index.json").write_text(json.dumps(index))
    assert by_label(list(samples_in(directory))) == everything


def test_codecs_that_no_index_can_say_are_refused(tmp_path: Path) -> None:
    with raises(SpecError, ".mds.lz4 shards", paths=["output_extension"]):
        run_local(tmp_path, spec_of(**JOB) | {"output_extension": ".mds.lz4"})


def test_shards_with_other_columns_are_refused_by_shard_and_column(tmp_path: Path) -> None:
    some_samples(tmp_path / "in")
    other = [{"id": "x", "image": b"", "label": 1}]
    write_mds(tmp_path / "in", {**COLUMNS, "id": "bytes"}, {"shard.00001.mds": [
        {**other[0], "id": b"x"}
    ]})  # fmt: skip
    with raises(SchemaError, "shard shard.00001.mds", "column id", "shard.00000.mds"):
        run_local(tmp_path, spec_of(**JOB))


def test_the_index_of_others_is_not_replaced_unless_it_may_be(tmp_path: Path) -> None:
    everything = some_samples(tmp_path / "in")
    index = tmp_path / "out" / "train" / "index.json"
    index.parent.mkdir(parents=True)
    index.write_bytes(b"of others")
    with pytest.raises(NamesTakenError, match=r"train/index\.json"):
        run_local(tmp_path, spec_of(**JOB))
    assert index.read_bytes() == b"of others"
    run_local(tmp_path, spec_of(**JOB, overwrite=True))
    assert by_label(list(samples_in(index.parent))) == everything
    before = tree_of(tmp_path / "in")
    beside = spec_of(**{**JOB, "output_bck": "in", "output_format": "out-%05d"})
    with raises(NamesTakenError, "index.json"):
        run_local(tmp_path, beside, overwrite=True)
    assert {n: v for n, v in tree_of(tmp_path / "in").items() if n in before} == before


def verified(root: Path, bucket: str) -> tuple[Any, ...]:
    (manifest,) = (root / bucket / ".dsort").glob("*/manifest.json")
    return api.verify(manifest.read_bytes(), options=RunOptions(root=root)).problems


def members_of(count: int = 11) -> list[Member]:
    return [
        Member(name, payload)
        for n in range(count)
        for name, payload in (
            (f"d/{n:03d}.txt", f"text {n} é".encode()),
            (f"d/{n:03d}.seg.png", bytes([n]) * 700 * (n % 3)),
            (f"d/{n:03d}.cls", b"%02d\n" % n),
            (f"d/{n:03d}.Z", b"first"),
        )
    ]


def test_a_tar_becomes_samples_and_comes_back_byte_for_byte(tmp_path: Path) -> None:
    members = members_of()
    parts = (members[:20], members[20:])
    shards = {f"a-{n}.tar": Shard(tuple(part)) for n, part in enumerate(parts)}
    write_shards(tmp_path / "in", shards)
    run_local(tmp_path, spec_of(**TARS, output_bck="samples", verify="content"), workers=2)
    assert verified(tmp_path, "samples") == ()
    samples = list(samples_in(tmp_path / "samples"))
    assert [sample["__key__"] for sample in samples] == [f"d/{n:03d}" for n in range(11)]
    assert samples[4] == {
        "Z": b"first",
        "__key__": "d/004",
        "cls": 4,
        "seg.png": bytes([4]) * 700,
        "txt": "text 4 é",
    }
    listed = json.loads((tmp_path / "samples" / "index.json").read_bytes())["shards"][0]
    assert listed["column_encodings"] == ["bytes", "str", "str_int", "png", "str"]
    back = spec_of(
        input_bck="samples",
        input_format={"template": "out-{0..2}"},
        input_extension=".mds",
        output_extension=".tar",
        output_shard_records=100,
    )
    run_local(tmp_path, back)
    found = read_shard(files_of(tmp_path / "out")["out-0.tar"])
    assert sorted((member.name, member.payload) for member in found) == sorted(
        (member.name, member.payload) for member in members
    )
    assert [member.name for member in found[:4]] == [
        "d/000.Z", "d/000.cls", "d/000.seg.png", "d/000.txt",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("members", "named"),
    [
        (["0.a", "0.b", "1.a"], "member .b"),
        (["0.a", "1.a", "1.b"], "member .b"),
        (["0.a", "alone"], ""),
    ],
)
def test_a_record_with_other_members_is_refused_by_name(
    tmp_path: Path, members: list[str], named: str
) -> None:
    shards = {f"a-{n}.tar": Shard(tuple(Member(name, b"x") for name in members)) for n in range(2)}
    write_shards(tmp_path / "in", shards)
    with raises(ConversionError, named):
        run_local(tmp_path, spec_of(**TARS))


@pytest.mark.parametrize("output", [".mds", ".bin"])
def test_what_a_record_lacks_is_what_the_spec_says_and_is_counted_by_name(
    tmp_path: Path, output: str
) -> None:
    one = Shard(tuple(Member(name, b"7") for name in ("a.cls", "b.txt", "b.cls")))
    other = Shard((Member("c.jpg", b""), Member("c.txt", b"")))
    write_shards(tmp_path / "in", {"a-0.tar": one, "a-1.tar": other})
    fields = TARS | {"output_extension": output, "member_defaults": {"cls": "-1", "jpg": "é"}}
    with raises(ConversionError, "record b", "member .txt", "record a"):
        run_local(tmp_path, spec_of(**fields))
    fields["member_defaults"]["txt"] = ""
    for move, bucket in (("map", "samples"), ("spill", "again")):
        spec = spec_of(
            **fields,
            output_bck=bucket,
            verify="content",
            algorithm={"kind": "content", "extension": ".cls", "content_key_type": "int"},
        )
        report = run_local(tmp_path, spec, move=move)
        count, names = count_of(report, "members_defaulted")
        assert (count, names[:2]) == (4, ("a-0.tar: a.jpg", "a-0.tar: b.jpg"))
        assert verified(tmp_path, bucket) == ()
    assert files_of(tmp_path / "again", f"*{output}") == files_of(
        tmp_path / "samples", f"*{output}"
    )
    (manifest,) = (tmp_path / "samples" / ".dsort").glob("*/manifest.json")
    said = json.loads(manifest.read_bytes())
    assert said["spec"]["member_defaults"] == fields["member_defaults"]
    assert {"kind": "members_defaulted", "count": 4}.items() <= said["reactions"][0].items()
    lines = manifest.with_name("reactions.jsonl").read_text().splitlines()
    assert sum("members_defaulted" in line for line in lines) == 4
    run_local(
        tmp_path,
        spec_of(
            input_bck="samples",
            input_format={"template": "out-{0..0}"},
            input_extension=output,
            output_extension=".tar",
            output_shard_records=100,
        ),
    )
    found = {
        each.name.split("/")[-1]: each.payload
        for each in read_shard(files_of(tmp_path / "out")["out-0.tar"])
    }
    wanted = {
        "cls": [b"-1", b"7", b"7"],
        "jpg": [b"", "é".encode(), "é".encode()],
        "txt": [b"", b"", b"7"],
    }
    for extension, payloads in wanted.items():
        assert [data for name, data in found.items() if name.endswith(extension)] == payloads


def test_records_that_lack_members_may_be_left_out(tmp_path: Path) -> None:
    members = [
        Member(name, b"1") for name in ("a.cls", "a.txt", "b.txt", "c.cls", "c.txt", "alone")
    ]
    write_shards(tmp_path / "in", {"a-0.tar": Shard(members), "a-1.tar": Shard(members[:2])})
    steps = [{"require": {"extensions": ["cls"], "on_missing": "exclude"}}]
    spec = spec_of(**TARS, transform={"steps": steps}, duplicate_keys="ignore")
    report = run_local(tmp_path, spec)
    assert count_of(report, "left_out_by_steps")[0] == 2
    assert [each["__key__"] for each in samples_in(tmp_path / "out")] == ["a", "c", "a"]
    assert verified(tmp_path, "out") == ()


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"output_extension": ".tar"}, "member_defaults"),
        ({"input_extension": ".mds"}, "member_defaults"),
        ({"member_defaults": {".cls": ""}}, "member_defaults..cls"),
        ({"member_defaults": {"cls": 1}}, "member_defaults.cls"),
        ({"member_defaults": {"\ud800": ""}}, "member_defaults"),
    ],
)
def test_defaults_that_go_nowhere_are_refused(fields: dict[str, Any], path: str) -> None:
    with raises(SpecError, paths=[path]):
        parse_spec(spec_of(**TARS | {"member_defaults": {"cls": ""}} | fields))


def test_a_class_that_is_no_number_is_refused_for_no_reader_could_decode_its_sample(
    tmp_path: Path,
) -> None:
    classes = [b"7", b"-1\n", b" +07 ", "٣".encode(), b"1_000"]  # as Python's int() takes them
    members = [Member(f"{n}.cls", payload) for n, payload in enumerate(classes)]
    write_shards(tmp_path / "in", {f"a-{n}.tar": Shard(members[n::2]) for n in range(2)})
    run_local(tmp_path, spec_of(**TARS))
    assert [each["cls"] for each in samples_in(tmp_path / "out")] == [7, 7, 1000, -1, 3]
    for payload in (b"dog", b"", b"1.5", b"\xff"):
        write_shards(tmp_path / "in", {"a-0.tar": Shard([*members, Member("x.cls", payload)])})
        with raises(ConversionError, "record x", "member x.cls"):
            run_local(tmp_path, spec_of(**TARS), overwrite=True)


def test_tars_whose_records_differ_from_shard_to_shard_are_refused(tmp_path: Path) -> None:
    one, other = Shard((Member("0.a", b"x"),)), Shard((Member("1.b", b"x"),))
    write_shards(tmp_path / "in", {"a-0.tar": one, "a-1.tar": other})
    with raises(SchemaError, "shard a-1.tar", "column a"):
        run_local(tmp_path, spec_of(**TARS))


CHUNKS: dict[str, Any] = {
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
        spec = spec_of(**{**CHUNKS, "output_bck": bucket}, verify="content")
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
        run_local(
            tmp_path,
            spec_of(**{**CHUNKS, "output_bck": f"o{seed}", "algorithm": order}),
        )
        made.append(json.loads((tmp_path / f"o{seed}" / "index.json").read_bytes())["updated_at"])
    assert made[0] != made[1]


def test_chunks_without_their_index_are_refused(tmp_path: Path) -> None:
    some_chunks(tmp_path / "in")
    (tmp_path / "in" / "index.json").unlink()
    with raises(SchemaError, "index.json"):
        run_local(tmp_path, spec_of(**CHUNKS))
    (tmp_path / "in" / "index.json").write_bytes(b"{}")
    with raises(SchemaError, "index.json", "LitData"):
        run_local(tmp_path, spec_of(**CHUNKS))


def test_directories_whose_items_differ_are_refused(tmp_path: Path) -> None:
    for name, leaves in (("a", ["bytes", "int"]), ("b", ["bytes", "float"])):
        write_litdata(
            tmp_path / "in" / name,
            {"chunk-0-0.bin": [(b"x", 1)]},
            {**CONFIG, "data_format": leaves},
        )
    spec = spec_of(
        **{
            **CHUNKS,
            "input_format": {"objnames": ["a/chunk-0-0.bin", "b/chunk-0-0.bin"]},
        }
    )
    with raises(SchemaError, "b/index.json", "data_format"):
        run_local(tmp_path, spec)


TARS_TO_CHUNKS: dict[str, Any] = {
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


def unpacked(path: Path) -> dict[str, bytes]:
    return {stored.name: stored.payload for stored in read_shard(path.read_bytes())}


@pytest.mark.parametrize(("move", "workers"), [("map", 2), ("spill", 1)])
def test_tars_become_items_and_come_back_as_they_were(
    tmp_path: Path, move: Any, workers: int
) -> None:
    members = some_tars(tmp_path / "in")
    run_local(tmp_path, spec_of(**TARS_TO_CHUNKS), move=move, workers=workers)
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
    assert unpacked(tmp_path / "back" / "b-0.tar") == members


def test_a_result_without_records_has_an_index_that_can_be_read(tmp_path: Path) -> None:
    write_shards(tmp_path / "in", {"a-0.tar": Shard((Member("a.txt", b"x"),))})
    steps = {"steps": [{"filter": 'key == "no"'}]}
    spec = spec_of(output_extension=".bin", output_shard_records=None, output_shard_count=2)
    report = run_local(tmp_path, spec | {"transform": steps})
    assert (report.records, report.output_shards) == (0, 2)
    assert verified(tmp_path, "out") == ()
    assert leaves_in(tmp_path / "out") == []
    again = {"input_bck": "out", "input_extension": ".bin", "output_bck": "again"}
    assert run_local(tmp_path, spec_of(**again)).records == 0


def test_numbers_of_items_become_text(tmp_path: Path) -> None:
    items = some_chunks(tmp_path / "in", 2)
    spec = spec_of(**{**CHUNKS, "output_extension": ".tar", "output_format": "b-%d"})
    run_local(tmp_path, spec)
    found = unpacked(tmp_path / "out" / "b-0.tar")
    for number, (image, label) in enumerate(items):
        key = f"chunk-0-{number // 2}-{number % 2:09d}"
        assert (found[f"{key}.0"], found[f"{key}.1"]) == (image, b"%d" % label)


def test_records_that_lack_a_leaf_are_refused_by_name(tmp_path: Path) -> None:
    shard = Shard((Member("a.jpg", b"1"), Member("a.cls", b"2"), Member("b.jpg", b"3")))
    write_shards(tmp_path / "in", {"a-0.tar": shard, "a-1.tar": shard})
    with raises(ConversionError, "record b", "member .cls", "record a"):
        run_local(tmp_path, spec_of(**TARS_TO_CHUNKS))
