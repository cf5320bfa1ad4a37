"""Each field by itself: what it accepts, what it becomes, and what is said when it is wrong."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from pydantic import ValidationError

from dsort.sizes import Bytes, Percent
from dsort.spec.load import parse_spec
from tests.support.spec_cases import CONTENT, small, spec_of


def test_the_defaults() -> None:
    spec = spec_of()
    assert spec.input_extension == spec.output_extension == ".tar"
    assert all(value is None for _, value in spec.input_format)  # everything with the extension
    assert (spec.algorithm.kind, spec.algorithm.seed) == ("alphanumeric", None)
    assert (spec.ekm, spec.ekm_file, spec.ekm_file_sep, spec.has_key_map) == (
        None,
        None,
        "\t",
        False,
    )
    assert (spec.verify, spec.index, spec.overwrite, spec.dry_run) == ("none", (), False, False)
    assert (spec.extract_concurrency_max_limit, spec.create_concurrency_max_limit) == (0, 0)
    assert (spec.max_mem_usage, spec.memory_limit) == ("80%", Percent(80))
    config = spec.config
    assert config.missing_shards is None  # warn, but no input at all is an error
    assert (config.duplicated_records, config.duplicate_keys) == (None, "warn")
    assert (config.ekm_malformed_line, config.ekm_missing_key) == ("abort", "abort")
    assert (config.corrupt_shards, config.stray_members) == ("abort", "keep")
    assert (config.incomplete_shards, config.concatenated_shards) == ("abort", "read")


@pytest.mark.parametrize("nothing", [None, ""])
def test_null_and_the_empty_text_mean_not_given(nothing: object) -> None:
    """AIStore's clients write out every field, empty ones as well."""
    empty = dict.fromkeys(
        ("ekm_file", "output_extension", "max_mem_usage", "dsorter_type", "output_bck"), nothing
    )
    spec = spec_of(
        **empty,
        algorithm={"kind": nothing, "seed": nothing, "extension": nothing},
        input_format={"template": nothing, "objnames": None},
        Config={"missing_shards": nothing, "compression": nothing},
    )
    assert spec == spec_of()


@pytest.mark.parametrize("seed", [0, -7, 2**80, "epoch 1", "007"])
def test_any_whole_number_and_any_text_is_a_seed(seed: object) -> None:
    assert spec_of(algorithm={"kind": "shuffle", "seed": seed}).algorithm.seed == str(seed)


def test_memory_is_a_share_or_an_amount_and_the_jobs_own_word_wins() -> None:
    assert spec_of(max_mem_usage=" 50 %").memory_limit == Percent(50)
    assert spec_of(max_mem_usage="2GB").memory_limit == Bytes(2 * 1024**3)
    config = {"default_max_mem_usage": "30%"}
    assert spec_of(Config=config).memory_limit == Percent(30)
    assert spec_of(Config=config, max_mem_usage="40%").memory_limit == Percent(40)


@pytest.mark.parametrize(
    ("fields", "extensions"),
    [
        ({}, (".tar", ".tar")),
        ({"input_extension": "tar"}, (".tar", ".tar")),
        ({"input_format": {"template": "a-{0..9}.tar"}}, (".tar", ".tar")),
        ({"output_format": "shard-%d.tar", "output_extension": ".tar"}, (".tar", ".tar")),
    ],
)
def test_extensions(fields: dict[str, Any], extensions: tuple[str, str]) -> None:
    spec = spec_of(**fields)
    assert (spec.input_extension, spec.output_extension) == extensions


@pytest.mark.parametrize("everything", [{}, {"template": "*"}, {"template": ""}, None])
def test_everything_goes_in_unless_said_otherwise(everything: object) -> None:
    assert spec_of(input_format=everything) == spec_of()


def test_an_external_key_map() -> None:
    spec = spec_of(
        output_format=...,
        ekm={"cats-%d": ["^cat", "felix"], "dogs-{0..9}.tar": ["^dog"]},
        ekm_default="rest-@99",
        Config={"ekm_missing_key": "warn"},
    )
    assert spec.ekm == {"cats-%d": ("^cat", "felix"), "dogs-{0..9}.tar": ("^dog",)}
    assert (spec.ekm_default, spec.has_key_map) == ("rest-@99", True)
    for place in ("/data/map.json", "https://host/map", "file:///data/map"):
        assert spec_of(output_format=..., ekm_file=place, ekm_file_sep=";").ekm_file == place


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
