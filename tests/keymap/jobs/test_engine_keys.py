"""Keys that come from elsewhere: the external key map, and the content of a member; what a record
without one does."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsort.api import verify
from dsort.errors import ContentKeyError, KeyMapError
from dsort.options import RunOptions
from tests.support.datasets import Shard, files_of, write_shards
from tests.support.engine import (
    count_of,
    keys_in,
    record,
    records_out,
    refused,
    run_local,
    shard_of,
    spec_of,
)

pytestmark = pytest.mark.usefixtures("workers_here")

# --- external key map ----------------------------------------------------------------------------

KEYED = {"in-0.tar": shard_of("cat1", "dog1", "cow"), "in-1.tar": shard_of("dog2", "cat2", "both")}
EKM = {"cats-%d": ["^cat", "both"], "dogs-%02d": ["^dog[0-9]", "both.jpg"]}


def keyed(**fields: object) -> dict[str, object]:
    spec = spec_of(ekm=EKM, **fields)
    del spec["output_format"]
    return spec


def test_a_record_without_a_place_aborts(tmp_path: Path) -> None:
    write_shards(tmp_path / "in", KEYED)
    with refused(tmp_path, KeyMapError, "cow", "in-0.tar", "ekm_missing_key"):
        run_local(tmp_path, keyed())


def test_a_record_with_two_places_has_none(tmp_path: Path) -> None:
    write_shards(tmp_path / "in", {"in.tar": shard_of("both")})
    with refused(tmp_path, KeyMapError, "both", "in.tar"):
        run_local(tmp_path, keyed())


@pytest.mark.parametrize("reaction", ["warn", "ignore"])
def test_records_without_a_place_may_be_dropped(reaction: str, tmp_path: Path) -> None:
    write_shards(tmp_path / "in", KEYED)
    report = run_local(tmp_path, keyed(Config={"ekm_missing_key": reaction}))
    found = {name: keys_in(data) for name, data in files_of(tmp_path / "out").items()}
    assert found == {
        "cats-0.tar": ["cat1.jpg", "cat2.jpg"],
        "dogs-00.tar": ["dog1.jpg", "dog2.jpg"],
    }
    assert count_of(report, "ekm_missing_key") == (2, ("in-0.tar: cow", "in-1.tar: both"))
    assert bool(report.warnings) is (reaction == "warn")


def test_records_without_a_place_may_have_one_of_their_own(tmp_path: Path) -> None:
    write_shards(tmp_path / "in", KEYED)
    spec = keyed(Config={"ekm_missing_key": "warn"}, ekm_default="rest-{0..9}")
    run_local(tmp_path, spec, move="spill", workers=2)
    assert keys_in(files_of(tmp_path / "out")["rest-0.tar"]) == ["cow.jpg", "both.jpg"]


def test_a_renamed_record_goes_where_its_own_name_says(tmp_path: Path) -> None:
    shards = {"in-0.tar": shard_of("cat1"), "in-1.tar": shard_of("cat1", "dog1")}
    write_shards(tmp_path / "in", shards)
    spec = spec_of(
        ekm={"cats-%d": ["cat1.jpg"], "dogs-%d": ["dog1"]}, Config={"duplicate_keys": "rename"}
    )
    del spec["output_format"]
    run_local(tmp_path, spec)
    assert keys_in(files_of(tmp_path / "out")["cats-0.tar"]) == ["cat1.jpg", "cat1-1.jpg"]


@pytest.mark.parametrize("reaction", ["abort", "warn", "ignore"])
def test_lines_of_a_key_map_may_be_malformed(reaction: str, tmp_path: Path) -> None:
    write_shards(tmp_path / "in", {"in.tar": shard_of("a")})
    path = tmp_path / "map.tsv"
    path.write_text("a\tas-%d\nno separator\n")
    spec = spec_of(ekm_file=str(path), Config={"ekm_malformed_line": reaction})
    del spec["output_format"]
    if reaction == "abort":
        with refused(tmp_path, KeyMapError, "map.tsv", "1 malformed line", "ekm_malformed_line"):
            run_local(tmp_path, spec)
        return
    report = run_local(tmp_path, spec)
    assert count_of(report, "ekm_malformed_line")[0] == 1
    assert bool(report.warnings) is (reaction == "warn")
    assert list(files_of(tmp_path / "out")) == ["as-0.tar"]


@pytest.mark.parametrize(
    ("compatibility", "names"),
    [("dsort", ["cats-0.tar", "dogs-0.tar"]), ("aistore", ["cats-0", "dogs-0.tar"])],
)
def test_names_of_a_key_map_get_the_extension_unless_as_aistore_names_them(
    compatibility: str, names: list[str], tmp_path: Path
) -> None:
    write_shards(tmp_path / "in", KEYED)
    (tmp_path / "map").write_text("^cat\tcats-%d\n^dog\tdogs-%d.tar\n")
    spec = keyed(
        ekm_file=str(tmp_path / "map"), ekm_missing_key="ignore", index="wids",
        compatibility=compatibility,
    )  # fmt: skip
    del spec["ekm"]
    report = run_local(tmp_path, spec)
    there = [path.name for path in (tmp_path / "out").iterdir() if path.suffix != ".json"]
    assert sorted(name for name in there if not name.startswith(".")) == names
    manifest = (tmp_path / "out" / str(report.manifest_name)).read_bytes()
    assert verify(manifest, options=RunOptions(root=tmp_path, workers=1)).ok


# --- content keys --------------------------------------------------------------------------------

CONTENT = {"kind": "content", "extension": ".cls", "content_key_type": "int"}
SORTED = {
    "in-0.tar": Shard((*record("a", "cls", payload=b"7"), *record("no"))),
    "in-1.tar": Shard((*record("b", "cls", payload=b" -3\n"),)),
}


def test_a_record_without_a_content_key_aborts(tmp_path: Path) -> None:
    write_shards(tmp_path / "in", SORTED)
    with refused(tmp_path, ContentKeyError, "no", "in-0.tar", ".cls", "content_key_missing"):
        run_local(tmp_path, spec_of(algorithm=CONTENT))


@pytest.mark.parametrize("decreasing", [False, True])
@pytest.mark.parametrize("missing", ["first", "last"])
def test_records_without_a_content_key_have_a_place(
    missing: str, decreasing: bool, tmp_path: Path
) -> None:
    write_shards(tmp_path / "in", SORTED)
    algorithm = CONTENT | {"content_key_missing": missing, "decreasing": decreasing}
    run_local(tmp_path, spec_of(algorithm=algorithm))
    keyed = ["a.cls", "b.cls"] if decreasing else ["b.cls", "a.cls"]
    assert records_out(tmp_path) == (
        ["no.jpg", *keyed] if missing == "first" else [*keyed, "no.jpg"]
    )


@pytest.mark.parametrize("move", ["map", "spill"])
@pytest.mark.parametrize("decreasing", [False, True])
def test_integers_of_more_than_64_bits_are_sorted_beside_small_ones(
    decreasing: bool, move: str, tmp_path: Path
) -> None:
    values = [2**63, -(2**63) - 1, 7, 10**40, 2**63 - 1, -(10**400), -(2**63), 2**64, -8, 10**400]
    members = [
        each
        for row, value in enumerate(values)
        for each in record(f"k{row}", "cls", payload=f"{value}\n".encode())
    ]
    parts = (members[:2], members[2:3], members[3:6], members[6:7], members[7:])
    shards = {f"in-{number}.tar": Shard(tuple(rows)) for number, rows in enumerate(parts)}
    write_shards(tmp_path / "in", shards)
    algorithm = CONTENT | {"decreasing": decreasing}
    report = run_local(tmp_path, spec_of(algorithm=algorithm), move=move)
    order = sorted(range(len(values)), key=values.__getitem__, reverse=decreasing)
    assert records_out(tmp_path) == [f"k{row}.cls" for row in order]
    manifest = (tmp_path / "out" / str(report.manifest_name)).read_bytes()
    assert verify(manifest, options=RunOptions(root=tmp_path, workers=1)).ok


def test_a_field_of_a_json_member_is_a_content_key(tmp_path: Path) -> None:
    texts = {"a": b'{"m": {"x": 2.5}}', "b": b'{"m": {"x": -1}}', "c": b'{"m": {}}'}
    members = [each for key, text in texts.items() for each in record(key, "json", payload=text)]
    write_shards(tmp_path / "in", {"in.tar": Shard(tuple(members))})
    algorithm = {"kind": "content", "extension": ".json", "content_key_type": "float"}
    algorithm |= {"json_field": "m.x", "content_key_missing": "last"}
    run_local(tmp_path, spec_of(algorithm=algorithm))
    assert records_out(tmp_path) == ["b.json", "a.json", "c.json"]
    with refused(tmp_path, ContentKeyError, "record c", "field m.x", ".json"):
        del algorithm["content_key_missing"]
        run_local(tmp_path, spec_of(algorithm=algorithm, overwrite=True))


@pytest.mark.parametrize(("strip", "order"), [(True, ["a", "b", "c"]), (False, ["c", "b", "a"])])
def test_white_space_around_string_keys_is_ignored_unless_it_counts(
    strip: bool, order: list[str], tmp_path: Path
) -> None:
    texts = {"a": b"1", "b": b" 2", "c": b"\n 3"}
    members = [each for key, text in texts.items() for each in record(key, "cls", payload=text)]
    write_shards(tmp_path / "in", {"in.tar": Shard(tuple(members))})
    algorithm = CONTENT | {"content_key_type": "string", "strip": strip}
    report = run_local(tmp_path, spec_of(algorithm=algorithm))
    assert records_out(tmp_path) == [f"{key}.cls" for key in order]
    manifest = (tmp_path / "out" / str(report.manifest_name)).read_bytes()
    assert verify(manifest, options=RunOptions(root=tmp_path, workers=1)).ok


def test_a_json_field_that_is_no_string_names_member_shard_and_field(tmp_path: Path) -> None:
    members = record("a", "json", payload=b'{"m": {"x": null}}')
    write_shards(tmp_path / "in", {"in.tar": Shard(tuple(members))})
    algorithm = {"kind": "content", "extension": ".json", "content_key_type": "string"}
    with refused(tmp_path, ContentKeyError, "a.json", "in.tar", "field m.x"):
        run_local(tmp_path, spec_of(algorithm=algorithm | {"json_field": "m.x"}))


def test_a_content_that_is_no_key_names_the_member(tmp_path: Path) -> None:
    write_shards(tmp_path / "in", {"in.tar": Shard(tuple(record("a", "cls", payload=b"x7")))})
    with refused(tmp_path, ContentKeyError, "a.cls", "in.tar", "'x7'"):
        run_local(tmp_path, spec_of(algorithm=CONTENT | {"content_key_missing": "first"}))
