"""Each row of the tables of docs/migration/aistore.md is shown by a test: here, or where the table
says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.datasets import files_of, write_shards
from tests.support.engine import keys_in, run_local, shard_of, spec_of

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "migration" / "aistore.md"
HERE = "integration/test_aistore_differences.py"
COMPATIBILITY = "integration/test_aistore_compatibility.py"
KEYS = "integration/test_engine_keys.py"
OUTPUTS = "integration/test_engine_outputs.py"
REACTIONS = "integration/test_engine_reactions.py"
REQUESTS = "unit/test_service_peer_requests.py"
ROUTES = "unit/test_service_peer_routes.py"
SDK = "integration/test_service_aistore_sdk.py"
VIEWS = "unit/test_service_peer_views.py"
SHOWN_BY = [  # (how a row begins, file, test), in the order of the page
    ("the same seed", OUTPUTS, "the_same_bytes_whatever_the_workers_and_the_movement"),
    ("`alphanumeric`", HERE, "keys_are_compared_and_long_names_stay"),
    ("`md5`", "unit/test_core_hashes.py", "md5_words_are_the_digest"),
    ("a long name", HERE, "keys_are_compared_and_long_names_stay"),
    ("a directory", REACTIONS, "strays_are_kept_but_for_directories_and_devices"),
    ("one key in several", REACTIONS, "duplicate_keys_may_be_let_be"),
    ("missing input shards", REACTIONS, "missing_shards_are_counted_exactly"),
    ("a warning for each", VIEWS, "missing_and_duplicated_items_have_a_warning_each"),
    ("a content key", KEYS, "records_without_a_content_key_have_a_place"),
    ("a record without its", KEYS, "a_record_without_a_content_key_aborts"),
    ("names that", KEYS, "names_of_a_key_map_get_the_extension_unless_as_aistore_names_them"),
    ("with a key map", "unit/test_core_plan.py", "a_shard_closes_once_its_payload_is_large_enough"),
    ("a record that a key", "unit/test_keymap.py", "unplaced_records_go_to_the_default_template"),
    (
        "an output template",
        OUTPUTS,
        "a_template_that_is_too_small_is_refused_before_anything_is_written",
    ),
    ("an input template", REACTIONS, "a_template_without_a_range_is_that_one_shard"),
    ("`dry_run: true`", SDK, "a_dry_run_of_a_yaml_file_is_listed_and_removed"),
    (
        "an unknown field",
        "unit/test_spec_messages.py",
        "an_unknown_field_gets_the_closest_known_name",
    ),
    ("shards that were", SDK, "a_running_job_is_aborted_and_leaves_no_shards"),
    ("an input bucket", REQUESTS, "a_recorded_request_has_its_answer"),
    ("`extracted_record_count`", SDK, "a_job_of_the_framework_and_what_is_reported_of_it"),
    (
        "zip becomes",
        "integration/test_encoded_shards.py",
        "each_format_of_aistore_becomes_each_other",
    ),
    ("all of `/v1/sort`", ROUTES, "viewers_look_and_change_nothing"),
    ("the rest of", ROUTES, "what_only_a_cluster_has_is_declined"),
    # compatibility: aistore
    ("`alphanumeric`", COMPATIBILITY, "whole_names_of_first_members_are_compared"),
    ("`md5`", COMPATIBILITY, "whole_names_of_first_members_are_compared"),
    ("`content` as", COMPATIBILITY, "a_newline_is_a_part_of_a_string_key_and_of_no_number"),
    ("an external", COMPATIBILITY, "shards_of_a_key_map_close_once_they_are_over_the_limit"),
]


def test_every_row_of_the_page_names_what_shows_it() -> None:
    found = re.findall(r"^\| (.+?) \| .+ \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    rows = [row for row in found if row not in ("AIStore", "with")]
    assert len(rows) == len(SHOWN_BY)
    for row, (begin, *_) in zip(rows, SHOWN_BY, strict=True):
        assert row.startswith(begin)


@pytest.mark.parametrize(("file", "name"), sorted({(file, name) for _, file, name in SHOWN_BY}))
def test_what_shows_a_row_is_there(file: str, name: str) -> None:
    text = (ROOT / "tests" / file).read_text(encoding="utf-8")
    assert f"\ndef test_{name}(" in text


def test_keys_are_compared_and_long_names_stay(tmp_path: Path) -> None:
    """AIStore compares ``a-1.jpg`` with ``a.jpg``; under ``dsort_mem`` it cuts long names."""
    long = "long/" * 40 + "z"
    write_shards(tmp_path / "in", {"in-0.tar": shard_of(long, "a-1"), "in-1.tar": shard_of("a")})
    run_local(tmp_path, spec_of(algorithm={"kind": "alphanumeric"}), move="spill")
    (data,) = files_of(tmp_path / "out").values()
    assert keys_in(data) == ["a.jpg", "a-1.jpg", f"{long}.jpg"]
