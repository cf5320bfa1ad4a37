"""Specs as values: what follows from their fields, and what stays as it is. (What is refused, and
what a spec becomes: ``tests/golden/specs.jsonl``.)"""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from pydantic import ValidationError

from dsort.sizes import Bytes, Percent
from dsort.spec.dialects import OLDER_NAMES
from dsort.spec.inputs import JobConfig
from dsort.spec.load import parse_spec
from tests.support.spec_cases import CONTENT, problems_of, small, spec_of


def test_memory_is_a_share_or_an_amount_and_the_jobs_own_word_wins() -> None:
    assert spec_of(max_mem_usage=" 50 %").memory_limit == Percent(50)
    assert spec_of(max_mem_usage="2GB").memory_limit == Bytes(2 * 1024**3)
    config = {"default_max_mem_usage": "30%"}
    assert spec_of(Config=config).memory_limit == Percent(30)
    assert spec_of(Config=config, max_mem_usage="40%").memory_limit == Percent(40)


def test_a_spec_cannot_be_changed_and_can_be_sent_to_workers() -> None:
    spec = spec_of(output_format=..., ekm={"a-%d": ["x"]}, algorithm={"kind": "shuffle"})
    with pytest.raises(ValidationError):
        spec.dry_run = True
    with pytest.raises(ValidationError):
        spec.config.missing_shards = "warn"
    assert pickle.loads(pickle.dumps(spec)) == spec
    steps = {"steps": [{"sample": {"fraction": 0.5}}, {"fields": {"keep": ["a:b"]}}]}
    keys = [{"kind": "md5"}, {"kind": "shuffle"}]
    spec = spec_of(transform=steps, algorithm={"kind": "keys", "keys": keys})
    assert pickle.loads(pickle.dumps(spec)) == spec


def test_a_drawn_seed_goes_into_a_new_spec() -> None:
    spec = spec_of(algorithm={"kind": "shuffle"})
    seeded = spec.with_seed("17")
    assert (spec.algorithm.seed, seeded.algorithm.seed) == (None, "17")
    assert seeded == spec_of(algorithm={"kind": "shuffle", "seed": 17})


def test_the_given_mapping_stays_as_it_is() -> None:
    given = small(input_format="a-{0..9}", missing_shards="warn", Config={"compression": "never"})
    before = pickle.dumps(given)
    parse_spec(given)
    assert pickle.dumps(given) == before


FORGOTTEN = " (the spec names none; to shuffle: algorithm: {kind: shuffle})"


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        ({}, f"alphanumeric: sorted by name{FORGOTTEN}"),
        ({"natural": True}, f"alphanumeric: sorted by name, numbers as numbers{FORGOTTEN}"),
        ({"kind": "alphanumeric", "decreasing": True}, "alphanumeric: sorted by name, decreasing"),
        ({"kind": "shuffle"}, "shuffle"),
        ({**CONTENT, "json_field": "a.b"}, "content: sorted by .cls, as int, field a.b"),
    ],
)
def test_an_algorithm_is_named_in_words_and_a_forgotten_one_is_reported(
    algorithm: dict[str, Any], words: str
) -> None:
    assert spec_of(algorithm=algorithm).algorithm.in_words == words


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
