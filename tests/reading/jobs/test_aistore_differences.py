"""Each row of the tables of docs/migration/aistore.md is shown by tests: here, or elsewhere by
those that are named."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from dsort.errors import ObjectNotFoundError
from dsort.spec.load import parse_spec
from tests.support.datasets import Member, Shard, files_of, write_shards
from tests.support.encoded_files import encoded
from tests.support.engine import keys_in, records_out, run_local, shard_of, spec_of
from tests.support.internals import Tally, resolve_inputs
from tests.support.memory_bucket import MemoryBucket
from tests.support.refusals import raises
from tests.support.zips import zip_of

pytestmark = pytest.mark.usefixtures("workers_here")

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "migration" / "aistore.md"
SHOWN_BY = {  # how a row begins: its tests, in the order of the page
    "the same seed": ("the_same_bytes_whatever_the_workers_and_the_movement",),
    "`alphanumeric`": ("keys_are_compared_and_long_names_stay",),
    "`md5`": ("md5_is_the_order_of_digests",),
    "`none`": ("inputs_come_in_their_order",),
    "`duplicated_records`": ("members_of_one_name_abort_wherever_they_are_in_the_shard",),
    "existing outputs": ("names_that_are_taken_are_refused_before_anything_is_written",),
    "an output name": ("an_output_never_replaces_an_input",),
    "keys of an external": ("expressions_are_tried_anywhere_in_the_first_name_and_the_key",),
    "a dead target": ("compressed_shards_have_the_same_bytes_and_sizes_after_a_death",),
    "`dsorter_type`": ("every_spec_gives_what_is_pinned",),
    "a long name": ("keys_are_compared_and_long_names_stay",),
    "a directory": ("strays_are_kept_but_for_directories_and_devices",),
    "a file without": ("a_file_without_a_dot_is_a_record_of_its_own",),
    "one key in several": (
        "duplicate_keys_may_be_let_be",
        "duplicate_keys_may_abort",
        "duplicate_keys_may_be_dropped",
    ),
    "missing input shards": ("missing_shards_are_counted_exactly", "missing_shards_may_abort"),
    "`objnames`": ("names_of_a_list_are_taken_as_they_are",),
    "a warning for each": ("missing_and_duplicated_items_have_a_warning_each",),
    "a member whose": (
        "members_that_lead_out_of_the_archive_end_the_job_unless_the_spec_says_otherwise",
        "a_shard_with_a_member_that_leads_out_of_it_ends_the_job",
    ),
    "a content key": ("a_newline_at_the_end_of_a_content_key_is_left_out",),
    "a record without its": (
        "a_record_without_a_content_key_aborts",
        "records_without_a_content_key_have_a_place",
    ),
    "output names of": ("names_of_a_key_map_get_the_extension_unless_as_aistore_names_them",),
    "with a key map": ("shards_of_a_key_map_close_once_they_are_over_the_limit",),
    "for compressed": ("the_size_of_shards_is_that_of_payload_whatever_the_codec",),
    "a record that a key": ("a_record_that_a_key_map_does_not_place_is_left_out_or_kept",),
    "an output template": ("a_template_that_is_too_small_is_refused_before_anything_is_written",),
    "an input template": (
        "a_template_without_a_range_is_that_one_shard",
        "inputs_come_in_their_order",
    ),
    "`dry_run: true`": ("a_dry_run_of_a_yaml_file_is_listed_and_removed",),
    "an unknown field": (
        "every_spec_gives_what_is_pinned",
        "an_unknown_field_is_reported_in_json_and_in_yaml",
    ),
    "shards that were": ("a_running_job_is_aborted_and_leaves_no_shards",),
    "a job with an input bucket": (
        "a_recorded_request_has_its_answer",
        "a_bucket_of_a_store_that_is_not_there_is_missed_when_the_job_runs",
    ),
    "a job reads": ("each_format_of_aistore_becomes_each_other", "formats_may_be_mixed"),
    "all of `/v1/sort`": (
        "every_route_answers_every_caller_as_the_table_says",
        "jobs_belong_to_who_started_them",
    ),
    "a job can use": ("a_job_that_was_asked_to_stop_lets_its_output_names_go",),
    "the map of": ("the_recorded_requests_have_their_answers_one_after_the_other",),
    "requests about": ("what_only_a_cluster_has_is_declined", "a_recorded_request_has_its_answer"),
}
AS_AISTORE = {  # the same of compatibility: aistore
    "`alphanumeric`": ("whole_names_of_first_members_are_compared",),
    "`md5`": ("whole_names_of_first_members_are_compared",),
    "`content` as": ("a_newline_is_a_part_of_a_string_key_and_of_no_number",),
    "an external": (
        "shards_of_a_key_map_close_once_they_are_over_the_limit",
        "names_of_a_key_map_get_the_extension_unless_as_aistore_names_them",
    ),
}
OBJECTS = {  # the same of buckets and objects
    "an access list": ("every_route_answers_every_caller_as_the_table_says",),
    "objects can": ("what_the_sdk_means_by_more_than_a_plain_write_is_declined",),
    "inputs and outputs": ("what_a_running_job_needs_stays_as_it_is",),
    "`bucket rm`": ("buckets_and_objects_from_their_making_to_their_removal",),
    "`object rm --list`": ("the_recorded_requests_have_their_answers_one_after_the_other",),
    "buckets can be copied": ("what_the_sdk_means_by_more_than_a_plain_write_is_declined",),
    "`get --checksum`": ("the_recorded_requests_have_their_answers_one_after_the_other",),
    "`ls --props atime": ("the_recorded_requests_have_their_answers_one_after_the_other",),
    "`--archregx`": ("the_recorded_requests_have_their_answers_one_after_the_other",),
    "the SDK puts": ("a_key_map_of_the_framework",),
}
ALL = (SHOWN_BY, AS_AISTORE, OBJECTS)


def test_every_row_of_the_page_names_what_shows_it() -> None:
    found = re.findall(r"^\| (.+?) \| .+ \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    rows = [row for row in found if row not in ("AIStore", "with")]
    begins = [begin for each in ALL for begin in each]
    assert len(rows) == len(begins)
    for row, begin in zip(rows, begins, strict=True):
        assert row.startswith(begin)


def test_what_shows_a_row_is_there() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    there = set(re.findall(r"^ *def test_(\w+)\(", text, re.MULTILINE))
    assert {name for rows in ALL for shown in rows.values() for name in shown} <= there


# --- rows that nothing else shows as they are -----------------------------------------------------


def test_keys_are_compared_and_long_names_stay(tmp_path: Path) -> None:
    """AIStore compares ``a-1.jpg`` with ``a.jpg``; under ``dsort_mem`` it cuts long names."""
    long = "long/" * 40 + "z"
    write_shards(tmp_path / "in", {"in-0.tar": shard_of(long, "a-1"), "in-1.tar": shard_of("a")})
    run_local(tmp_path, spec_of(algorithm={"kind": "alphanumeric"}), move="spill")
    (data,) = files_of(tmp_path / "out").values()
    assert keys_in(data) == ["a.jpg", "a-1.jpg", f"{long}.jpg"]


def test_md5_is_the_order_of_digests(tmp_path: Path) -> None:
    keys = [f"{number:02}" for number in range(20)]
    write_shards(tmp_path / "in", {"in-0.tar": shard_of(*keys)})
    run_local(tmp_path, spec_of(algorithm={"kind": "md5"}, output_shard_records=20))
    digests = sorted(keys, key=lambda key: hashlib.md5(key.encode()).digest())
    assert digests != sorted(keys)
    assert records_out(tmp_path) == [f"{key}.jpg" for key in digests]


def test_a_file_without_a_dot_is_a_record_of_its_own(tmp_path: Path) -> None:
    members = tuple(Member(name, name.encode()) for name in ("b.jpg", "b", "a.jpg"))
    write_shards(tmp_path / "in", {"in-0.tar": Shard(members)})
    report = run_local(tmp_path, spec_of())
    assert report.records == 3


@pytest.mark.parametrize(
    ("key_type", "last"), [("int", b"10"), ("float", b"9.5"), ("string", b"9")]
)
def test_a_newline_at_the_end_of_a_content_key_is_left_out(
    key_type: str, last: bytes, tmp_path: Path
) -> None:
    keys = [last + b"\n", b"8\n", b"8", b" 8 "]
    members = tuple(Member(f"{at}.cls", key) for at, key in enumerate(keys))
    write_shards(tmp_path / "in", {"in-0.tar": Shard(members)})
    algorithm = {"kind": "content", "extension": ".cls", "content_key_type": key_type}
    run_local(tmp_path, spec_of(algorithm=algorithm))
    assert records_out(tmp_path) == ["1.cls", "2.cls", "3.cls", "0.cls"]  # equal keys: as they came


@pytest.mark.parametrize("default", [None, "rest-%d"])
def test_a_record_that_a_key_map_does_not_place_is_left_out_or_kept(
    default: str | None, tmp_path: Path
) -> None:
    write_shards(tmp_path / "in", {"in-0.tar": shard_of("cat1", "cow", "cat2")})
    placed = {"ekm_default": default} if default else {}
    spec = spec_of(ekm={"cats-%d": ["^cat"]}, ekm_missing_key="ignore", **placed)
    del spec["output_format"]
    report = run_local(tmp_path, spec)
    found = {name: keys_in(data) for name, data in files_of(tmp_path / "out").items()}
    rest = {"rest-0.tar": ["cow.jpg"]} if default else {}
    assert found == {"cats-0.tar": ["cat1.jpg", "cat2.jpg"], **rest}
    assert report.warnings == ()


def test_the_size_of_shards_is_that_of_payload_whatever_the_codec(tmp_path: Path) -> None:
    """AIStore would take 1,000 bytes for 1,000 by the compression of the inputs."""
    members = tuple(Member(f"{at:02}.txt", b"x" * 500) for at in range(12))
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "in-0.tar.gz").write_bytes(encoded(".gz", Shard(members).data))
    sizes = {"output_shard_size": 1000, "output_shard_records": None}
    run_local(tmp_path, spec_of(input_extension=".tar.gz", output_extension=".tar", **sizes))
    assert {len(keys_in(data)) for data in files_of(tmp_path / "out").values()} == {2}


def test_a_bucket_of_a_store_that_is_not_there_is_missed_when_the_job_runs() -> None:
    bucket = MemoryBucket("s3://gone", exists=False)
    spec = parse_spec(spec_of(input_bck="s3://gone")).spec
    with raises(ObjectNotFoundError, "s3://gone"):
        resolve_inputs(spec, bucket, Tally())


def test_formats_may_be_mixed(tmp_path: Path) -> None:
    for place, data in (
        ("one/a.tar", shard_of("a").data),
        ("one/b.tar.gz", encoded(".gz", shard_of("b").data)),
        ("two/c.zip", zip_of([("c.jpg", b"c")])),
    ):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_bytes(data)
    inputs = [
        {"name": "one", "input_bck": "one", "input_format": {"objnames": ["b.tar.gz", "a.tar"]}},
        {"name": "two", "input_bck": "two", "input_extension": ".zip"},
    ]
    spec = spec_of(inputs=inputs, output_extension=".tar")
    del spec["input_bck"]
    run_local(tmp_path, spec)
    assert records_out(tmp_path) == ["b.jpg", "a.jpg", "c.jpg"]
