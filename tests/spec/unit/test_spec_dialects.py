"""Older names mean what today's mean, draw one warning each, and may not contradict them."""

from __future__ import annotations

from typing import Any

import pytest

from dsort.spec.config import JobConfig
from dsort.spec.dialects import OLDER_NAMES
from dsort.spec.load import parse_spec
from dsort.spec.model import JobSpec
from dsort.spec.schema import schema
from tests.support.spec_cases import BLOG_POST, CONTENT, problem_of, problems_of, small, spec_of

CONTENT_OLD = {"kind": "content", "extension": ".cls"}
KEY_MAP = {"output_format": ..., "ekm_file": "map"}


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


@pytest.mark.parametrize(
    ("older", "today", "warning"),
    [
        ({"input_bck": ..., "bck": {"name": "b"}}, {"input_bck": {"name": "b"}},
         '"bck" is an older name: write "input_bck"'),
        ({"extension": ".tar"}, {"input_extension": ".tar", "output_extension": ".tar"},
         '"extension" is an older name: write "input_extension"'),
        ({"output_format": ..., "order_file": "m"}, {"output_format": ..., "ekm_file": "m"},
         '"order_file" is an older name: write "ekm_file"'),
        ({**KEY_MAP, "order_file_sep": "|"}, {**KEY_MAP, "ekm_file_sep": "|"},
         '"order_file_sep" is an older name: write "ekm_file_sep"'),
        ({**KEY_MAP, "ekm_sep": "|"}, {**KEY_MAP, "ekm_file_sep": "|"},
         '"ekm_sep" is an older name: write "ekm_file_sep"'),
        ({"dryrun": True}, {"dry_run": True}, '"dryrun" is an older name: write "dry_run"'),
        ({"algorithm": {**CONTENT_OLD, "format_type": "int"}}, {"algorithm": CONTENT},
         '"algorithm.format_type" is an older name: write "algorithm.content_key_type"'),
        ({"algorithm": {**CONTENT_OLD, "contentkeytype": "int"}}, {"algorithm": CONTENT},
         '"algorithm.contentkeytype" is an older name: write "algorithm.content_key_type"'),
        ({"algorithm": {"kind": "content", "ext": ".cls", "content_key_type": "int"}},
         {"algorithm": CONTENT},
         '"algorithm.ext" is an older name: write "algorithm.extension"'),
        ({"config": {"missing_shards": "warn"}}, {"Config": {"missing_shards": "warn"}},
         '"config" is an older name: write "Config"'),
        ({"Config": {"missingshards": "warn"}}, {"Config": {"missing_shards": "warn"}},
         '"Config.missingshards" is an older name: write "Config.missing_shards"'),
        ({"input_format": "a-{0..9}"}, {"input_format": {"template": "a-{0..9}"}},
         'a text as "input_format" is an older form: write {"template": ...}'),
        ({"input_format": ["a", "b"]}, {"input_format": {"objnames": ["a", "b"]}},
         'a list as "input_format" is an older form: write {"objnames": ...}'),
    ],
)  # fmt: skip
def test_an_older_way_means_the_same_and_draws_one_warning(
    older: dict[str, Any], today: dict[str, Any], warning: str
) -> None:
    loaded = parse_spec(small(**older))
    assert loaded.spec == spec_of(**today)
    assert len(loaded.warnings) == 1
    assert loaded.warnings[0].startswith(warning)


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


def test_every_field_of_config_may_be_at_the_top_level_and_no_other_has_its_name() -> None:
    named = {field.alias or name for name, field in JobSpec.model_fields.items()}
    assert not named & set(JobConfig.model_fields)
    kept = {name for name, field in JobConfig.model_fields.items() if not field.exclude}
    assert kept <= set(spec_of().canonical())
    for name in JobConfig.model_fields:
        assert problem_of(**{name: []}).path == name
        assert problem_of(Config={name: []}).path == f"Config.{name}"
        assert name in schema()["properties"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("call_timeout", "10m"), ("compression", "never"), ("bundle_multiplier", 4),
     ("burst_buffer", 128), ("dsorter_mem_threshold", "100GB")],
)  # fmt: skip
def test_a_field_without_effect_in_an_older_place_draws_one_warning_only(
    name: str, value: object
) -> None:
    (warning,) = parse_spec(small(**{name: value})).warnings
    assert warning.startswith(f'"{name}" has no effect: ')


@pytest.mark.parametrize("name", ["stream_multiplier", "extended_metrics"])
def test_fields_that_aistore_dropped_are_ignored_with_a_warning(name: str) -> None:
    loaded = parse_spec(small(**{name: 4}))
    assert loaded.spec == spec_of()
    assert loaded.warnings == (f'"{name}" has no effect: AIStore has dropped it, too',)


@pytest.mark.parametrize(
    ("fields", "path", "message", "hint"),
    [
        ({"bck": "a", "input_bck": "b"}, "bck",
         'says the text "a", but "input_bck" says the text "b"', 'keep "input_bck" only'),
        ({"missing_shards": "warn", "Config": {"missing_shards": "abort"}},
         "Config.missing_shards",
         'says the text "abort", but "missing_shards" says the text "warn"',
         'keep "missing_shards" only'),
        ({"duplicate_keys": "warn", "config": {"duplicate_keys": "drop"}},
         "Config.duplicate_keys",
         'but "duplicate_keys" says the text "warn"', 'keep "duplicate_keys" only'),
        ({"dryrun": True, "dry_run": False}, "dryrun", 'says true, but "dry_run" says false',
         'keep "dry_run" only'),
        ({"ekm_sep": "a", "order_file_sep": "b", **KEY_MAP}, "ekm_sep",
         'says the text "a", but "ekm_file_sep" says the text "b"', 'keep "ekm_file_sep" only'),
    ],
)  # fmt: skip
def test_an_older_and_todays_name_must_not_differ(
    fields: dict[str, Any], path: str, message: str, hint: str
) -> None:
    problem = problem_of(**fields)
    assert (problem.path, problem.hint) == (path, hint)
    assert message in problem.message


def test_an_older_and_todays_name_may_say_the_same() -> None:
    loaded = parse_spec(small(bck="samples"))
    assert loaded.spec == spec_of()
    assert loaded.warnings == ('"bck" is an older name: write "input_bck"',)


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"input_bck": ..., "bck": {"name": "../x"}}, "bck.name"),
        ({"extension": ".jpg"}, "extension"),
        ({"input_format": "a-%d"}, "input_format"),
        ({"input_format": ["a", 5]}, "input_format[1]"),
        ({"missing_shards": "stop"}, "missing_shards"),
        ({"duplicate_keys": "stop"}, "duplicate_keys"),
        ({"config": {"missing_shards": "stop"}}, "config.missing_shards"),
        ({"algorithm": {"kind": "content", "ext": "cls", "format_type": "int"}}, "algorithm.ext"),
        ({"Config": 5, "missing_shards": "warn"}, "Config"),
    ],
)
def test_problems_are_reported_where_the_user_wrote_them(fields: dict[str, Any], path: str) -> None:
    assert problem_of(**fields).path == path


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


def test_a_kind_alone_that_is_none_is_refused_under_its_own_name() -> None:
    problem = problem_of(algorithm="shufle")
    assert problem.path == "algorithm"
    assert problem.hint == 'did you mean "shuffle"?'


def test_a_kind_alone_that_needs_options_says_which() -> None:
    assert set(problems_of(small(algorithm="content"))) == {
        "algorithm.extension",
        "algorithm.content_key_type",
    }


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
