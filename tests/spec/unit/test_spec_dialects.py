"""Older names mean what today's mean, draw one warning each, and may not contradict them."""

from __future__ import annotations

from typing import Any

import pytest

from dsort.spec.dialects import OLDER_NAMES
from dsort.spec.inputs import JobConfig
from dsort.spec.load import parse_spec
from tests.support.spec_cases import BLOG_POST, problems_of, small, spec_of


def test_the_spec_of_the_blog_post_runs_word_for_word() -> None:
    loaded = parse_spec(BLOG_POST)
    assert loaded.spec == spec_of(
        input_bck="images",
        input_extension=".tar",
        input_format={"template": "samples-{00..18}"},
        output_format="shuffled-shard-%d",
        output_shard_size="100MB",
        description="Create new shuffled shards",
        algorithm={"kind": "shuffle"},
    )
    assert loaded.warnings == (
        '"bck" is an older name: write "input_bck"',
        '"extension" is an older name: write "input_extension" (and "output_extension", where it '
        "differs)",
        'a text as "input_format" is an older form: write {"template": ...}',
    )


REACTIONS: dict[str, Any] = {
    "missing_shards": "abort",
    "duplicated_records": "ignore",
    "ekm_malformed_line": "warn",
    "ekm_missing_key": "warn",
    "duplicate_keys": "rename",
    "corrupt_shards": "skip",
    "incomplete_shards": "warn",
    "concatenated_shards": "abort",
    "stray_members": "drop",
    "default_max_mem_usage": "60%",
}


@pytest.mark.parametrize(("name", "value"), REACTIONS.items())
def test_the_top_level_is_the_place_of_reactions_and_config_is_as_good(
    name: str, value: str
) -> None:
    for fields in (
        {name: value},
        {"Config": {name: value}},
        {name: value, "Config": {name: value}},
    ):
        loaded = parse_spec(small(**fields))
        assert loaded.spec == spec_of(**{name: value})
        assert loaded.warnings == ()
        assert getattr(loaded.spec.config, name) == value
        assert loaded.spec.canonical()[name] == value
        assert "Config" not in loaded.spec.canonical()


def test_an_older_and_todays_name_may_say_the_same() -> None:
    loaded = parse_spec(small(bck="samples"))
    assert loaded.spec == spec_of()
    assert loaded.warnings == ('"bck" is an older name: write "input_bck"',)


def test_todays_paths_of_older_names_exist() -> None:
    """Each of them is a field that a spec may have: nothing is translated into the void."""
    unknown = problems_of(dict.fromkeys((name.split(".")[0] for name in OLDER_NAMES), ()))
    assert not any("unknown field" in problem.message for problem in unknown.values())
    paths = set()
    for part, fields in _canonical_and_ignored().items():
        paths |= {f"{part}.{name}" if part else name for name in fields}
    assert set(OLDER_NAMES.values()) <= paths


def _canonical_and_ignored() -> dict[str, set[str]]:
    whole = spec_of().canonical()
    return {
        "": set(whole) | {"dsorter_type", "Config"},
        "algorithm": set(whole["algorithm"]),
        "Config": set(JobConfig.model_fields),
    }


@pytest.mark.parametrize("kind", ["shuffle", "md5", "none", "alphanumeric"])
def test_a_kind_alone_is_an_algorithm(kind: str) -> None:
    short, whole = parse_spec(small(algorithm=kind)), parse_spec(small(algorithm={"kind": kind}))
    assert short.spec.canonical() == whole.spec.canonical()
    assert short.spec == whole.spec
    assert short.warnings == whole.warnings


@pytest.mark.parametrize("size", [10, "10", " 1000 "])
def test_a_bare_tiny_size_of_shards_draws_a_warning(size: object) -> None:
    (warning,) = parse_spec(small(output_shard_size=size)).warnings
    assert warning.startswith("output_shard_size: ")
    assert "bytes" in warning


@pytest.mark.parametrize("size", ["10B", "10KB", 4096, "4096", "0.5MB"])
def test_other_sizes_of_shards_draw_none(size: object) -> None:
    assert parse_spec(small(output_shard_size=size)).warnings == ()


def test_a_bare_tiny_size_of_one_output_is_named() -> None:
    outputs = [
        {"name": "train", "fraction": 0.5, "output_format": "t-%d", "output_shard_size": 10},
        {"name": "val", "fraction": 0.5, "output_format": "v-%d"},
    ]
    loaded = parse_spec(small(outputs=outputs, output_format=...))
    assert [each.partition(":")[0] for each in loaded.warnings] == ["outputs[0].output_shard_size"]
