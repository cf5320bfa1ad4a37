"""``dsort.read(...)``: what each call gives the spec, and what is said of mistakes."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
import yaml

import dsort
from dsort.builder import SpecBuilder, read
from dsort.errors import SpecError
from dsort.spec.model import JobSpec
from dsort.storage.ref import BucketRef
from dsort.transforms.steps import STEPS
from tests.support.refusals import raises

SPECS = Path(__file__).parents[3] / "specs"
START = read("images")
END: dict[str, Any] = {"where": "out/x-%06d.tar", "size": "1GB"}
PLAIN = {
    "input_bck": "images",
    "output_bck": "out",
    "output_format": "x-%06d.tar",
    "output_shard_size": "1GB",
}
Call = Callable[[SpecBuilder], SpecBuilder]


def function(sample: dict[str, Any]) -> dict[str, Any]:
    return sample


def step(options: Mapping[str, Any]) -> dict[str, Any]:
    return {"transform": {"steps": [options]}}


def order(kind: str, **options: Any) -> dict[str, Any]:
    return {"algorithm": {"kind": kind, **options}}


CALLS: list[tuple[Call, dict[str, Any]]] = [
    (lambda b: b.filter("size() > 5"), step({"filter": "size() > 5"})),
    (lambda b: b.keep_keys(["a", "b"]), step({"keep_keys": {"keys": ["a", "b"]}})),
    (lambda b: b.drop_keys(file="k.txt"), step({"drop_keys": {"file": "k.txt"}})),
    (
        lambda b: b.sample(0.1, by="record", seed=3),
        step({"sample": {"fraction": 0.1, "by": "record", "seed": 3}}),
    ),
    (
        lambda b: b.require("jpg;png", "cls", on_missing="warn"),
        step({"require": {"extensions": ["jpg;png", "cls"], "on_missing": "warn"}}),
    ),
    (lambda b: b.fields(keep=["jpg"]), step({"fields": {"keep": ["jpg"]}})),
    (lambda b: b.slice(0, 100, 2), step({"slice": "0:100:2"})),
    (lambda b: b.slice("5:"), step({"slice": "5:"})),
    (lambda b: b.rekey("%09d"), step({"rekey": "%09d"})),
    (
        lambda b: b.map(function, batch_size=4),
        step({"map": {"python": f"{__name__}:function", "batch_size": 4}}),
    ),
    (lambda b: b.flat_map("a.b:c"), step({"flat_map": {"python": "a.b:c"}})),
    (lambda b: b.exec(["cp", "a"]), step({"exec": {"command": ["cp", "a"]}})),
    (lambda b: b.http("http://h:1"), step({"http": {"url": "http://h:1"}})),
    (lambda b: b.step("slice", "1:2"), step({"slice": "1:2"})),
    (
        lambda b: b.slice("1:2").on_error("skip", max_errors="1%", rejects=True),
        {
            "transform": {
                "steps": [{"slice": "1:2"}],
                "on_error": "skip",
                "max_errors": "1%",
                "rejects": True,
            }
        },
    ),
    (lambda b: b.shuffle(seed=42), order("shuffle", seed=42)),
    (lambda b: b.shuffle(interleave="cls"), order("shuffle", interleave={"by": "cls"})),
    (lambda b: b.sort(), order("alphanumeric")),
    (
        lambda b: b.sort("key", natural=True, decreasing=True),
        order("alphanumeric", natural=True, decreasing=True),
    ),
    (lambda b: b.sort("md5"), order("md5")),
    (
        lambda b: b.sort(".json", type="float", field="a.b", missing="last", bins=[0.5]),
        order(
            "content",
            extension=".json",
            content_key_type="float",
            json_field="a.b",
            content_key_missing="last",
            bins=[0.5],
        ),
    ),
    (
        lambda b: b.sort([{"kind": "md5"}, {"kind": "shuffle"}], seed=1),
        order("keys", keys=[{"kind": "md5"}, {"kind": "shuffle"}], seed=1),
    ),
    (lambda b: b.keep_order(), order("none")),
    (lambda b: b.order("md5", decreasing=True), order("md5", decreasing=True)),
    (lambda b: b.deduplicate(), {"deduplicate": {"by": "key"}}),
    (
        lambda b: b.deduplicate("content", extensions=["jpg"], keep="last"),
        {"deduplicate": {"by": "content", "extensions": ["jpg"], "keep": "last"}},
    ),
    (lambda b: b.index("wids", "sizes"), {"index": ["wids", "sizes"]}),
    (lambda b: b.lineage(), {"lineage": "parquet"}),
    (lambda b: b.checksum(), {"verify": "content"}),
    (lambda b: b.describe("text"), {"description": "text"}),
    (
        lambda b: b.limits(memory="2GB", extractors=1, creators=2, expansion=9),
        {
            "max_mem_usage": "2GB",
            "extract_concurrency_max_limit": 1,
            "create_concurrency_max_limit": 2,
            "max_expansion": 9,
        },
    ),
    (lambda b: b.reactions(duplicate_keys="drop"), {"duplicate_keys": "drop"}),
    (lambda b: b.notify(on_failure={"command": "page"}), {"on_failure": {"command": "page"}}),
    (
        lambda b: b.on_shard(["ls", "{path}"], timeout="5m"),
        {"on_shard": {"exec": ["ls", "{path}"], "timeout": "5m"}},
    ),
    (lambda b: b.set(compatibility="aistore"), {"compatibility": "aistore"}),
    (lambda b: b.split("train"), {"split": "train"}),
    (lambda b: b.ingest(layout="folders"), {"ingest": {"layout": "folders"}}),
    (
        lambda b: b.compress("zstd", level=3),
        {"output_format": "x-%06d.tar.zst", "output_compression_level": 3},
    ),
]


def spec_of(fields: Mapping[str, Any]) -> JobSpec:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return dsort.load_spec(fields)


def test_each_call_gives_the_fields_of_the_spec() -> None:
    for number, (call, fields) in enumerate(CALLS):
        whole = call(START).write(**END)
        assert whole.spec() == spec_of(PLAIN | fields), (number, whole)
        assert call(START.write(**END)) == whole, (number, whole)  # in any order


def test_calls_cover_what_a_spec_can_say() -> None:
    names = {field.alias or name for name, field in JobSpec.model_fields.items()}
    obsolete = {"dsorter_type"}
    assert names - {*SpecBuilder.set_by()} == {"Config"} | obsolete


def test_calls_cover_what_a_step_can_say() -> None:
    for kind, step in STEPS.items():
        taken = {*inspect.signature(getattr(read("in"), kind)).parameters}
        assert step.bare or "options" in taken or {*step.stated()} <= taken, kind
    assert read("in").require(fields=["text"]) == read("in").step("require", {"fields": ["text"]})


def test_the_builder_of_the_readme() -> None:
    built = (
        read("s3://raw-data/a/**/*.tar")
        .filter('size("jpg") < 5_000_000')
        .join("s3://labels", nonmatch="skip", own_nonmatch="none")
        .split(train=0.98, val=0.02)
        .shuffle(seed=42)
        .write("s3://out/{split}-{n:06d}.tar", records=10_000)
    )
    assert built.to_dict() == {
        "inputs": [
            {"input_bck": "s3://raw-data/a", "input_format": {"glob": "**/*.tar"}, "name": "a"},
            {"input_bck": "s3://labels", "join": {"nonmatch": "none"}, "name": "labels"},
        ],
        "transform": {"steps": [{"filter": 'size("jpg") < 5_000_000'}]},
        "join": {"nonmatch": "skip"},
        "outputs": [{"name": "train", "fraction": 0.98}, {"name": "val", "fraction": 0.02}],
        "algorithm": {"kind": "shuffle", "seed": 42},
        "output_shard_records": 10_000,
        "output_bck": "s3://out",
        "output_format": "{split}-{n:06d}.tar",
    }
    assert spec_of(yaml.safe_load(built.to_yaml())) == built.spec()


@pytest.mark.parametrize("path", sorted(SPECS.glob("*.[jy]*")), ids=lambda path: path.name)
def test_a_builder_made_from_a_spec_gives_it_back(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spec = dsort.load_spec(path)
    made = SpecBuilder.of(spec)
    assert made.spec() == spec
    assert made.describe("other").spec() == spec_of(spec.canonical() | {"description": "other"})


def test_hooks_are_given_back_too() -> None:
    spec = START.notify(on_success={"webhook": "https://h/x"}).write(**END).spec()
    assert SpecBuilder.of(spec).spec().on_success == spec.on_success


def test_places_to_read() -> None:
    def place(where: Any, **more: Any) -> tuple[str, dict[str, Any]]:
        fields = read(where, **more).to_dict()
        return fields["input_bck"], fields.get("input_format", {})

    assert place("images") == ("images", {})
    assert place("-") == ("-", {})
    assert place("images/a-{00..18}.tar") == ("images", {"template": "a-{00..18}.tar"})
    assert place("s3://raw/x/a-%03d.tar") == ("s3://raw/x", {"template": "a-%03d.tar"})
    assert place("s3://raw/x/*.tar") == ("s3://raw/x", {"glob": "*.tar"})
    assert place("*.tar") == (".", {"glob": "*.tar"})
    assert place("images/a.tar.gz") == ("images", {"objnames": ["a.tar.gz"]})
    assert place("images", shards=("b.tar",)) == ("images", {"objnames": ["b.tar"]})
    assert place("images", prefix="train/") == ("images", {"prefix": "train/"})
    assert place(Path("/data/a b/x.tar")) == ("file:///data/a%20b", {"objnames": ["x.tar"]})
    assert place(BucketRef("s3", "raw/web")) == ("s3://raw/web", {})
    assert place({"pipe": ["cat", "a.tar"]}) == ({"pipe": ["cat", "a.tar"]}, {})
    with raises(SpecError, "images/*.tar", "prefix", paths=["read(...)"]):
        read("images/*.tar", prefix="train/")


def test_a_count_may_be_a_multiple() -> None:
    made = START.write("out/x-%d", records=10, multiple_of=64).equalize("drop")
    assert made.to_dict()["output_shard_count"] == {"multiple_of": 64}
    assert made.spec().targets[0].count_for(1000, 0) == 128


def test_several_inputs_and_outputs() -> None:
    built = (
        read("web", weight=0.75)
        .union("s3://web", weight=0.25)
        .mix(records=60)
        .route(large='size("jpg") > 1_000_000', rest=True)
        .output("large", names="large/{n:05d}", records=5)
        .output("rest", "elsewhere/x-%d.tar.gz", size="1MB")
        .shuffle(seed=1)
        .write("out/{split}-{n:04d}", size="1GB")
    )
    fields = built.to_dict()
    assert [each["name"] for each in fields["inputs"]] == ["web", "web-2"]
    large, rest = fields["outputs"]
    assert large["output_format"] == "large/{n:05d}"
    assert (rest["output_bck"], rest["output_format"]) == ("elsewhere", "x-%d.tar.gz")
    assert SpecBuilder.of(built.spec()).spec() == built.spec()


def test_a_builder_is_frozen_and_short_to_look_at() -> None:
    one = START.shuffle(seed=1)
    two = one.sort("md5")
    assert one.to_dict() != two.to_dict()
    assert one == START.shuffle(seed=1)
    with pytest.raises(FrozenInstanceError):
        one.calls = ()  # type: ignore[misc]
    assert repr(two) == "<dsort.read('images').shuffle(seed=1).sort('md5')>"
    assert len(repr(one.keep_keys([str(n) for n in range(1000)]).index("wids"))) < 320
    keys = ["a"]
    made = START.keep_keys(keys).write(**END)
    keys.append("b")
    assert made.to_dict()["transform"] == {"steps": [{"keep_keys": {"keys": ["a"]}}]}


def test_all_problems_are_reported_at_once_in_the_words_of_the_calls() -> None:
    wrong = (
        START.filter("siz('jpg') < 5")
        .filter("true")
        .sample(2)
        .sort(".cls")
        .union("other", weight=-1)
        .reactions(duplicate_keyz="drop")
    )
    with pytest.raises(SpecError) as caught:
        wrong.write("out/{split}-{n:06d}.tar", records=0)
    told = {each.path: each for each in caught.value.problems}
    assert told["filter(...) no. 1"].hint == 'did you mean "size"?'
    assert {"sample(fraction=...)", "sort(type=...)", "write(records=...)"} <= {*told}
    assert "greater than 0" in told["union('other'), weight"].message
    assert told["reactions(duplicate_keyz=...)"].hint == 'did you mean "duplicate_keys"?'
    assert "write(names=...) has {split}" in told["split(...)"].message
    assert "output_" not in str(caught.value)
    with pytest.raises(SpecError) as caught:
        START.set(amend={"job": 5}).write(**END)
    assert [each.path for each in caught.value.problems] == ["set(amend=...), job"]


def test_what_no_spec_can_have_is_refused() -> None:
    with raises(SpecError, "shuffle()"):
        START.shuffle().spec()
    with raises(SpecError, paths=["map(...)"]):
        START.map(lambda sample: sample)
    with raises(SpecError, paths=["write(names=...)"]):
        START.write("out")


def test_submit_leaves_names_of_transforms_to_the_service() -> None:
    class Service:
        def submit(self, spec: Mapping[str, Any], /, **how: Any) -> tuple[Mapping[str, Any], Any]:
            return spec, how

    built = START.use("resize@3").write(**END)
    fields, how = built.submit(Service(), priority=5)
    assert (fields["transform"], how) == ({"use": "resize@3"}, {"priority": 5})
    with raises(SpecError, paths=["use(...)"]):
        built.spec()
