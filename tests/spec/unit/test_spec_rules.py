"""What holds between fields: every rule, its words, and all problems in one go."""

from __future__ import annotations

import pytest

from dsort.errors import SpecError
from dsort.spec.load import parse_spec
from dsort.spec.model import JobSpec
from tests.support.refusals import raises
from tests.support.spec_cases import CONTENT, problems_of, small, spec_of


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
    with raises(SpecError, paths=["output_format"]):
        JobSpec.model_validate({"input_bck": "samples"})
    made = JobSpec.model_validate(small())
    assert made == spec_of()


def test_a_rule_ends_at_a_field_that_is_wrong_and_reports_its_findings_so_far() -> None:
    fields = {"keep_shards": True, "output_shard_records": "x", "output_bck": "out"}
    problems = problems_of(small(**fields))
    assert {*problems} == {"output_shard_records", "output_format", "output_shard_size"}


def test_the_default_of_a_field_that_is_made_of_a_wrong_one_is_no_reason_for_problems() -> None:
    (path,) = problems_of(small(input_format={"template": 5}, output_compression_level=3))
    assert path == "input_format.template"
