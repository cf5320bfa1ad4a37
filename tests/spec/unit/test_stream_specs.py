"""What specs say of streams: standard input, standard output, and what programs write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsort.errors import ForbiddenError, SpecError
from dsort.service.config import SpecPolicy
from dsort.service.security.guard import check_spec
from dsort.spec.load import parse_spec
from tests.support.refusals import raises

CURL = {"pipe": ["curl", "-sf", "https://host/{shard}"]}


def test_input_and_output_are_short_names_of_streams_alone() -> None:
    short = parse_spec({"input": "-", "output": "-"})
    assert short.spec == parse_spec({"input_bck": "-", "output_bck": "-"}).spec
    assert short.warnings == ()
    with raises(SpecError, "input"):
        parse_spec({"input": "images", "output_format": "x-%d", "output_shard_records": 1})


def test_a_stream_goes_on_as_a_stream_unless_there_is_an_output_bucket() -> None:
    assert parse_spec({"input": "-"}).spec.output_bck.uri == "-"
    fields = {"input": "-", "output_bck": "out", "output_format": "x-{0..3}"}
    assert parse_spec(fields).spec.output_bck.uri == "out"


@pytest.mark.parametrize(
    "fields",
    [
        {"input": "-", "output_bck": "out"},
        {"input_bck": "in", "output_bck": "-"},
        {"input_bck": CURL, "input_format": {"template": "a-{0..3}"}, "output_bck": "out"},
    ],
)
def test_no_stream_comes_over_the_network(fields: dict[str, Any], tmp_path: Path) -> None:
    spec = parse_spec({"output_format": "x-{0..3}", **fields}).spec
    with pytest.raises(ForbiddenError, match="_bck"):
        check_spec(spec, SpecPolicy(root=tmp_path))
