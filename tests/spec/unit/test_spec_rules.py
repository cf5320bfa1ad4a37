"""What holds between fields: every rule, its words, and all problems in one go."""

from __future__ import annotations

from typing import Any

import pytest

from dsort.errors import SpecError
from dsort.spec.load import parse_spec
from dsort.spec.model import JobSpec
from tests.support.spec_cases import CONTENT, problem_of, problems_of, small, spec_of

SIZE_NEEDED = "output shard size must be set (cannot be 0 and cannot be omitted)"
KEY_MAP: dict[str, Any] = {"output_format": ..., "ekm": {"a-%d": ["x"]}}


@pytest.mark.parametrize(
    ("fields", "path", "message"),
    [
        # Inputs.
        ({"input_format": {"prefix": "a", "glob": "*"}}, "input_format",
         "has prefix and glob: only one of them can say which shards go in"),
        ({"input_format": {"template": "a-@9", "objnames": ["a"]}}, "input_format",
         "has template and objnames: only one of them"),
        ({"input_format": {"objnames": ["a", "b", "a"]}}, "input_format.objnames[2]",
         '"a" is named twice'),
        ({"input_format": {"objnames": ["a.tar", "b.zip"]}}, "input_format.objnames[1]",
         'ends in ".zip", but input_extension is ".tar"'),
        ({"input_format": {"glob": "*.zip"}, "input_extension": ".tar"}, "input_format.glob",
         'ends in ".zip", but input_extension is ".tar"'),
        ({"input_format": {"template": "a-@9.tar::b-@9.zip"}}, "input_format.template",
         'ends in ".zip", but input_extension is ".tar"'),
        # Outputs.
        ({"output_format": ...}, "output_format", "is required"),
        ({"output_format": "a-%d.zip", "output_extension": ".tar"}, "output_format",
         'ends in ".zip", but output_extension is ".tar"'),
        ({**KEY_MAP, "ekm": {"a-%d.tar.lz4": ["x"]}, "output_extension": "tar"},
         "ekm.a-%d.tar.lz4", 'ends in ".tar.lz4", but output_extension is ".tar"'),
        # Where shards end.
        ({"output_shard_count": 5}, "output_shard_count",
         "only one of output_shard_size and output_shard_count can say where shards end"),
        ({"output_shard_size": ..., "output_format": "a-{0..3}", "output_shard_size_is": "at_most"},
         "output_shard_size_is", "needs output_shard_size"),
        ({"output_format": "{split}-{n}"}, "split", "is required: output_format has {split}"),
        ({"output_format": "{split}-{n}", "split": "a-b"}, "split", "is no name of a split"),
        ({"output_format": "a-{total}"}, "output_format", "{n} is missing"),
        ({"output_shard_size": ..., "output_shard_records": 5, "output_shard_count": 5},
         "output_shard_count", "only one of output_shard_records and output_shard_count"),
        ({"output_shard_size": ...}, "output_shard_size", SIZE_NEEDED),
        ({"output_shard_size": 0}, "output_shard_size", SIZE_NEEDED),
        ({"output_shard_size": ..., "output_format": "{0..2147483647}"}, "output_shard_size",
         SIZE_NEEDED),
        ({**KEY_MAP, "output_shard_size": ...}, "output_shard_size", SIZE_NEEDED),
        ({**KEY_MAP, "output_shard_size": ..., "output_shard_count": 5}, "output_shard_count",
         "cannot be combined with an external key map"),
        ({"output_format": "a-{0..3}", "output_shard_size": ..., "output_shard_count": 5},
         "output_format",
         "number of shards to be created (5) exceeds the number of names (4)"),
        # Algorithms.
        ({"algorithm": {"kind": "content", "content_key_type": "int"}}, "algorithm.extension",
         "is required for content"),
        ({"algorithm": {"kind": "content", "extension": ".cls"}}, "algorithm.content_key_type",
         "is required for content"),
        ({"algorithm": {"kind": "content", "extension": ".json", "json_field": "a"}},
         "algorithm.content_key_type", "is required for content"),
        ({"algorithm": {"kind": "md5", "extension": ".cls"}}, "algorithm.extension",
         "cannot be combined with md5"),
        ({"algorithm": {"kind": "none", "content_key_type": "int"}}, "algorithm.content_key_type",
         "cannot be combined with none"),
        ({"algorithm": {"kind": "shuffle", "content_key_missing": "last"}},
         "algorithm.content_key_missing", "cannot be combined with shuffle"),
        ({"algorithm": {"json_field": "a"}}, "algorithm.json_field",
         "cannot be combined with alphanumeric"),
        ({"algorithm": {"kind": "shuffle", "decreasing": True}}, "algorithm.decreasing",
         "cannot be combined with shuffle"),
        ({"algorithm": {"kind": "none", "decreasing": True}}, "algorithm.decreasing",
         "cannot be combined with none"),
        ({"algorithm": {"kind": "md5", "natural": True}}, "algorithm.natural",
         "cannot be combined with md5"),
        ({"algorithm": {"strip": False}}, "algorithm.strip", "false has no meaning here"),
        ({"algorithm": {**CONTENT, "strip": False}}, "algorithm.strip",
         "false has no meaning here"),
        ({"algorithm": {**CONTENT, "natural": True}}, "algorithm.natural",
         "cannot be combined with content"),
        # External key maps.
        ({**KEY_MAP, "ekm_file": "map.json"}, "ekm",
         "there is an ekm_file, too: only one of them can place records"),
        ({**KEY_MAP, "ekm": {}}, "ekm", "must not be empty"),
        ({**KEY_MAP, "ekm": {"a-%d": ["x"], "b-%d": ["y", "x"]}}, "ekm.b-%d[1]",
         'duplicated key "x": it is under "a-%d" already'),
        ({**KEY_MAP, "ekm": {"a-%d": ["x", "x"]}}, "ekm.a-%d[1]", 'duplicated key "x"'),
        ({"ekm_default": "rest-%d"}, "ekm_default", "needs an external key map"),
        ({**KEY_MAP, "ekm_default": "rest-%d"}, "ekm_default", "no record can go there"),
    ],
)  # fmt: skip
def test_every_rule_names_its_field_and_says_what_is_wrong(
    fields: dict[str, Any], path: str, message: str
) -> None:
    problem = problem_of(**fields)
    assert problem.path == path
    assert message in problem.message


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        ({"output_format": ...}, 'e.g. "shard-%06d" (or an external key map: ekm)'),
        ({"output_shard_size": ...}, "output_shard_count, or give output_format an end"),
        ({**KEY_MAP, "output_shard_size": ...}, "with an external key map, set it"),
        ({"input_format": {"objnames": ["a", "a"]}}, "its records would be in the job twice"),
        ({"algorithm": {"kind": "shuffle", "decreasing": True}},
         "it needs alphanumeric, md5, content and value"),
        ({"algorithm": {"kind": "md5", "natural": True}}, "it needs alphanumeric"),
        ({**KEY_MAP, "ekm_default": "r-%d"}, 'set ekm_missing_key to "warn" or "ignore"'),
    ],
)  # fmt: skip
def test_rules_have_hints(fields: dict[str, Any], hint: str) -> None:
    assert hint in problem_of(**fields).hint


@pytest.mark.parametrize(
    "fields",
    [
        {"output_shard_size": ..., "output_format": "a-{0..9}"},  # size = total / count
        {"output_shard_size": ..., "output_format": "{0..2147483646}"},
        {"output_shard_size": ..., "output_shard_records": 1},
        {"output_shard_size": ..., "output_shard_count": 10, "output_format": "a-{0..9}"},
        {"output_shard_size": ..., "output_shard_count": 10, "output_format": "a-%d"},
        {**KEY_MAP, "output_shard_size": ..., "output_shard_records": 7},
        {**KEY_MAP, "ekm_default": "r-%d", "Config": {"ekm_missing_key": "warn"}},
        {"algorithm": {"decreasing": True, "natural": True}},
        {"algorithm": {"kind": "md5", "decreasing": True}},
        {"algorithm": {**CONTENT, "decreasing": True, "content_key_missing": "first"}},
        {"algorithm": {"kind": "shuffle", "decreasing": False, "natural": False}},
        {"input_format": {"objnames": ["no-suffix", "a.tar"]}},
    ],
)
def test_what_goes_together(fields: dict[str, Any]) -> None:
    assert spec_of(**fields)


def test_the_reaction_to_a_missing_content_key_is_abort_unless_said_otherwise() -> None:
    assert spec_of(algorithm=CONTENT).algorithm.content_key_missing == "abort"
    assert spec_of().algorithm.content_key_missing is None


def test_all_problems_are_reported_at_once_also_those_between_fields() -> None:
    problems = problems_of(
        {
            "input_bck": "s3:/images",
            "input_format": {"prefix": "a", "glob": "b"},
            "output_fromat": "shard-%d",
            "output_shard_size": "big",
            "output_shard_records": 3,
            "algorithm": {"kind": "shuffle", "decreasing": True, "seed": []},
            "Config": {"missing_shards": "stop"},
            "ekm_default": "rest",
        }
    )
    assert sorted(problems) == [
        "Config.missing_shards",
        "algorithm.decreasing",
        "algorithm.seed",
        "ekm_default",
        "input_bck",
        "input_format",
        "output_fromat",
        "output_shard_size",
    ]


def test_a_problem_is_said_once_at_its_root() -> None:
    """A rule says nothing about a field that is wrong in itself, or only misspelt."""
    assert problem_of(output_format="shard").path == "output_format"
    assert problem_of(output_format=..., output_fromat="shard-%d").path == "output_fromat"
    assert problem_of(input_bck=..., input_bkt="samples").path == "input_bkt"
    wrong_kind = {"kind": "contents", "extension": ".cls", "content_key_type": "int"}
    assert problem_of(algorithm=wrong_kind).path == "algorithm.kind"
    wrong_size = problem_of(output_shard_size="1 apple")
    assert wrong_size.path == "output_shard_size"


def test_the_text_of_the_error_has_a_line_and_a_hint_for_each_problem() -> None:
    with pytest.raises(SpecError) as error:
        parse_spec(small(output_format=..., algorithm={"kind": "shufle"}))
    kinds = "none, alphanumeric, shuffle, md5, content, keys or value"
    assert str(error.value).splitlines() == [
        f'algorithm.kind: must be {kinds}, not the text "shufle"',
        '  hint: did you mean "shuffle"?',
        "output_format: is required",
        '  hint: e.g. "shard-%06d" (or an external key map: ekm)',
    ]
    assert error.value.exit_code == 2


def test_no_spec_that_breaks_a_rule_can_be_made_in_python_either() -> None:
    with pytest.raises(SpecError, match="is required"):
        JobSpec.model_validate({"input_bck": "samples"})
    made = JobSpec.model_validate(small())
    assert made == spec_of()


@pytest.mark.parametrize(
    ("fields", "warning"),
    [
        ({"dsorter_type": "dsort_mem"}, '"dsorter_type" has no effect: '),
        ({"Config": {"dsorter_mem_threshold": "100GB"}}, '"dsorter_mem_threshold" has no'),
        ({"Config": {"call_timeout": "10m"}}, '"call_timeout" has no effect: '),
        ({"Config": {"compression": "never"}}, '"compression" has no effect: '),
        ({"Config": {"bundle_multiplier": 4}}, '"bundle_multiplier" has no effect: '),
        ({"Config": {"burst_buffer": 128}}, '"burst_buffer" has no effect: '),
        ({"algorithm": {"kind": "md5", "seed": 1}},
         '"algorithm.seed" has no effect: md5 is not random'),
        ({"ekm_file_sep": ","}, '"ekm_file_sep" has no effect: there is no ekm_file'),
        ({"ekm": {"a-%d": ["x"]}},
         '"output_format" has no effect: the external key map names the outputs'),
    ],
)  # fmt: skip
def test_what_cannot_apply_draws_one_warning_and_is_not_kept(
    fields: dict[str, Any], warning: str
) -> None:
    loaded = parse_spec(small(**fields))
    assert len(loaded.warnings) == 1
    assert loaded.warnings[0].startswith(warning)
    again = parse_spec(loaded.spec.canonical())
    assert (again.spec, again.warnings) == (loaded.spec, ())


def test_what_cannot_apply_is_checked_all_the_same() -> None:
    assert problem_of(dsorter_type="dsort_disk").path == "dsorter_type"
    assert problem_of(Config={"dsorter_mem_threshold": "x"}).path == "Config.dsorter_mem_threshold"
    assert problem_of(Config={"bundle_multiplier": -1}).path == "Config.bundle_multiplier"


def test_a_rule_ends_at_a_field_that_is_wrong_and_reports_its_findings_so_far() -> None:
    fields = {"keep_shards": True, "output_shard_records": "x", "output_bck": "out"}
    problems = problems_of(small(**fields))
    assert {*problems} == {"output_shard_records", "output_format", "output_shard_size"}


def test_the_default_of_a_field_that_is_made_of_a_wrong_one_is_no_reason_for_problems() -> None:
    (path,) = problems_of(small(input_format={"template": 5}, output_compression_level=3))
    assert path == "input_format.template"
