"""What specs say of streams: standard input, standard output, and what programs write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsort.errors import ForbiddenError, SpecError
from dsort.service.config import SpecPolicy
from dsort.service.security.guard import check_spec
from dsort.spec.load import parse_spec

CURL = {"pipe": ["curl", "-sf", "https://host/{shard}"]}


def test_input_and_output_are_short_names_of_streams_alone() -> None:
    short = parse_spec({"input": "-", "output": "-"})
    assert short.spec == parse_spec({"input_bck": "-", "output_bck": "-"}).spec
    assert short.warnings == ()
    with pytest.raises(SpecError) as caught:
        parse_spec({"input": "images", "output_format": "x-%d", "output_shard_records": 1})
    assert "input" in str(caught.value)


def test_a_stream_goes_on_as_a_stream_unless_there_is_an_output_bucket() -> None:
    assert parse_spec({"input": "-"}).spec.output_bck.uri == "-"
    fields = {"input": "-", "output_bck": "out", "output_format": "x-{0..3}"}
    assert parse_spec(fields).spec.output_bck.uri == "out"


def test_a_stream_is_one_shard_whatever_the_spec_says_of_sizes() -> None:
    loaded = parse_spec(
        {"input": "-", "output": "-", "output_format": "x-%d.tgz", "output_shard_records": 5}
    )
    assert loaded.spec.output_shard_records is None
    assert loaded.spec.output_extension == ".tgz"
    assert len(loaded.warnings) == 2


@pytest.mark.parametrize(
    "fields",
    [
        {"input": "-", "output": "-"},
        {"input_bck": CURL, "input_format": {"template": "a-{0..3}"}, "output": "-"},
        {
            "inputs": [{"name": "a", "input_bck": "-"}, {"name": "b", "input_bck": "b"}],
            "output": "-",
        },
    ],
)
def test_the_canonical_form_of_a_stream_is_read_back(fields: dict[str, Any]) -> None:
    spec = parse_spec(fields).spec
    again = parse_spec(spec.canonical())
    assert (again.spec, again.warnings) == (spec, ())
    assert spec.reads_streams


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"input": "-", "input_format": {"template": "a-{0..3}"}}, "one shard without a name"),
        ({"input_bck": {"pipe": "curl x"}, "output": "-"}, "each a text"),
        ({"input_bck": {"pipe": [], "prefix": "x"}, "output": "-"}, "cannot be combined with pipe"),
        ({"input_bck": "pipe:curl x", "output": "-"}, "a shell would have to"),
        ({"input_bck": CURL, "output": "-"}, "must name the shards"),
        ({"input_bck": CURL, "input_format": {"glob": "*.tar"}, "output": "-"}, "has no list"),
        (
            {"input_bck": {"pipe": ["cat"]}, "input_format": {"template": "{0..3}"}, "output": "-"},
            "not given their names",
        ),
        ({"input_bck": CURL, "input_format": {"template": "a-{0..3}"}}, "can only be read"),
        ({"input_bck": "in", "output_bck": CURL}, "can only be read"),
        ({"input": "-", "output": "-", "index": "wids"}, "nothing beside it"),
        ({"input": "-", "output": "-", "lineage": "jsonl"}, "nothing beside it"),
        ({"input": "-", "output": "-", "output_extension": ".mds"}, "an index beside them"),
        (
            {"inputs": [{"name": n, "input_bck": "-"} for n in "ab"], "output": "-"},
            "only once",
        ),
    ],
)
def test_what_no_stream_can_be_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec(fields)
    told = " ".join(f"{each} {each.hint}" for each in caught.value.problems)
    assert says in told


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
    with pytest.raises(ForbiddenError, match="over the network"):
        check_spec(spec, SpecPolicy(root=tmp_path))
