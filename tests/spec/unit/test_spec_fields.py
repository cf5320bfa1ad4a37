"""Each field by itself: what it accepts, what it becomes, and what is said when it is wrong."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from pydantic import ValidationError

from dsort.sizes import Bytes, Percent
from dsort.spec.load import parse_spec
from tests.support.spec_cases import CONTENT, problem_of, small, spec_of


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


@pytest.mark.parametrize("reaction", ["ignore", "warn", "abort"])
def test_missing_shards_is_known_to_be_set(reaction: str) -> None:
    assert spec_of(Config={"missing_shards": reaction}).config.missing_shards == reaction


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


@pytest.mark.parametrize(
    ("written", "size_bytes"),
    [("100MB", 100 * 1024**2), ("1.5KB", 1536), ("10 kib", 10240), (4096, 4096)],
)
def test_sizes_are_bytes(written: object, size_bytes: int) -> None:
    assert spec_of(output_shard_size=written).output_shard_size == size_bytes


@pytest.mark.parametrize("zero", [0, "0", "0MB"])
def test_no_size_and_a_size_of_zero_are_the_same(zero: object) -> None:
    assert spec_of(output_shard_size=zero, output_format="{0..9}").output_shard_size is None


@pytest.mark.parametrize("seed", [42, "42"])
def test_a_seed_is_text_whether_it_is_written_as_a_number_or_as_text(seed: object) -> None:
    assert spec_of(algorithm={"kind": "shuffle", "seed": seed}).algorithm.seed == "42"


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


@pytest.mark.parametrize(
    "inputs",
    [
        {"template": "samples-{000..099}"},
        {"template": "{train,val}-@9::extra.tar"},
        {"objnames": ["b.tar", "a", "dir/c.tar"]},
        {"prefix": "train/"},
        {"prefix": "samples-"},
        {"glob": "train/**/*-[0-9].tar"},
    ],
)
def test_inputs_by_template_list_prefix_or_glob(inputs: dict[str, Any]) -> None:
    given = {name: value for name, value in spec_of(input_format=inputs).input_format if value}
    assert given == {name: tuple(v) if name == "objnames" else v for name, v in inputs.items()}


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


@pytest.mark.parametrize(
    ("fields", "path", "message"),
    [
        # Types, in plain words.
        ({"description": 5}, "description", "must be text, not the number 5"),
        ({"dry_run": "yes"}, "dry_run", 'must be true or false, not the text "yes"'),
        ({"overwrite": 1}, "overwrite", "must be true or false, not the number 1"),
        ({"output_shard_size": ..., "output_shard_records": "10"}, "output_shard_records",
         'must be a whole number, not the text "10"'),
        ({"output_shard_size": ..., "output_shard_count": 2.0}, "output_shard_count",
         "must be a whole number, not the number 2.0"),
        ({"extract_concurrency_max_limit": True}, "extract_concurrency_max_limit",
         "must be a whole number, not true"),
        ({"algorithm": 5}, "algorithm", "must be an object, not the number 5"),
        ({"Config": []}, "Config", "must be an object, not a list"),
        ({"input_format": 7}, "input_format", "must be an object, not the number 7"),
        ({"input_format": {"objnames": "a"}}, "input_format.objnames",
         'must be a list, not the text "a"'),
        ({"input_format": {"objnames": ["a", None]}}, "input_format.objnames[1]",
         "must be text, not nothing"),
        ({"output_format": ..., "ekm": ["a"]}, "ekm", "must be an object, not a list"),
        ({"output_format": ..., "ekm": {"a-%d": "x"}}, "ekm.a-%d",
         'must be a list, not the text "x"'),
        ({"output_format": ..., "ekm": {"a-%d": [1]}}, "ekm.a-%d[0]",
         "must be text, not the number 1"),
        ({"output_shard_size": 1.5}, "output_shard_size",
         'must be a size such as "100MB", not the number 1.5'),
        ({"output_shard_size": True}, "output_shard_size",
         'must be a size such as "100MB", not true'),
        ({"max_mem_usage": 80}, "max_mem_usage",
         'must be a share or an amount ("80%", "10GB"), not the number 80'),
        ({"algorithm": {"kind": "shuffle", "seed": 1.5}}, "algorithm.seed",
         "must be a whole number or text, not the number 1.5"),
        ({"algorithm": {"kind": "shuffle", "seed": True}}, "algorithm.seed",
         "must be a whole number or text, not true"),
        # Values.
        ({"output_shard_size": ..., "output_shard_records": 0}, "output_shard_records",
         "must be at least 1, not 0"),
        ({"output_shard_size": ..., "output_shard_count": -3}, "output_shard_count",
         "must be at least 1, not -3"),
        ({"output_shard_size": ..., "output_shard_count": 2**63}, "output_shard_count",
         f"must be at most {2**63 - 1}, not {2**63}"),
        ({"create_concurrency_max_limit": -1}, "create_concurrency_max_limit",
         "must be at least 0, not -1"),
        ({"output_shard_size": "-1"}, "output_shard_size", "must not be negative"),
        ({"output_shard_size": "big"}, "output_shard_size", "'big' is not a size"),
        ({"max_mem_usage": "80"}, "max_mem_usage", "'80' is not a quantity"),
        ({"max_mem_usage": "120%"}, "max_mem_usage", "percent must be in the range (0, 100)"),
        ({"algorithm": {"kind": "random"}}, "algorithm.kind",
         "must be none, alphanumeric, shuffle, md5, content, keys or value, not the text "
         '"random"'),
        ({"Config": {"duplicate_keys": "stop"}}, "Config.duplicate_keys",
         'must be ignore, warn, abort, drop or rename, not the text "stop"'),
        ({"Config": {"corrupt_shards": "warn"}}, "Config.corrupt_shards",
         'must be abort or skip, not the text "warn"'),
        ({"verify": "all"}, "verify", 'must be none or content, not the text "all"'),
        ({"index": True}, "index", "must be a kind, or a list of them, not true"),
        ({"index": ["dali", "tfds"]}, "index", '"tfds" is no kind of index'),
        ({"index": ["dali", "dali"]}, "index", '"dali" is there more than once'),
        ({"index": "huggingface", "output_extension": ".zip"}, "index", "no index of .zip"),
        ({"index": "huggingface", "output_extension": ".mds"}, "index", "no index of .mds"),
        ({"index": ["energon", "lhotse"]}, "index", "choose one of them"),
        ({"index": ["wids"], "output_extension": ".tfrecord"}, "index", "no index of .tfrecord"),
        ({"input_extension": ".jpg"}, "input_extension", "'.jpg' is no archive extension"),
        ({"algorithm": {**CONTENT, "extension": "cls"}}, "algorithm.extension",
         '"cls" is no member extension'),
        ({"algorithm": {**CONTENT, "json_field": "a..b"}}, "algorithm.json_field",
         '"a..b" has an empty part'),
        # Names and templates.
        ({"output_format": "shard"}, "output_format", "no range in template 'shard'"),
        ({"output_format": "a-{001..009"}, "output_format", "'{' without a '}' after it"),
        ({"output_format": "/abs-%d"}, "output_format", "'/abs-0' is absolute"),
        ({"output_format": "../a-%d"}, "output_format", "has a '..' part"),
        ({"output_format": "a#-%d"}, "output_format", "contains '#'"),
        ({"output_format": "a?-%d"}, "output_format", "contains '?'"),
        ({"output_format": "out/%d/"}, "output_format", "has an empty part"),
        ({"output_format": ".dsort/%d"}, "output_format", "where dsort keeps its own files"),
        ({"output_format": ..., "ekm": {"a": ["x"]}}, "ekm.a", "no range in template 'a'"),
        ({"output_format": ..., "ekm": {"a-%d": []}}, "ekm.a-%d", "must not be empty"),
        ({"output_format": ..., "ekm": {"a-%d": [""]}}, "ekm.a-%d[0]", "must not be empty"),
        ({"output_format": ..., "ekm_file": "s3://b/map"}, "ekm_file", "s3:// is not supported"),
        ({"input_format": {"template": "a-%d"}}, "input_format.template", "must be bounded"),
        ({"input_format": {"template": "{0..99999999}"}}, "input_format.template",
         "too many values"),
        ({"input_format": {"template": "train/"}}, "input_format.template",
         'write {"prefix": "train/"}'),
        ({"input_format": {"template": "../a-@9"}}, "input_format.template", "has a '..' part"),
        ({"input_format": {"objnames": []}}, "input_format.objnames", "must not be empty"),
        ({"input_format": {"objnames": ["/a.tar"]}}, "input_format.objnames[0]", "is absolute"),
        ({"input_format": {"objnames": [""]}}, "input_format.objnames[0]", "must not be empty"),
        ({"input_format": {"prefix": "/train"}}, "input_format.prefix", "is absolute"),
        ({"input_format": {"prefix": ".dsort/"}}, "input_format.prefix", "its own files"),
        ({"input_format": {"glob": "../*.tar"}}, "input_format.glob", "has a '..' part"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named_with_what_it_must_be(
    fields: dict[str, Any], path: str, message: str
) -> None:
    problem = problem_of(**fields)
    assert problem.path == path
    assert message in problem.message


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        ({"algorithm": {"kind": "shufle"}}, 'did you mean "shuffle"?'),
        ({"Config": {"missing_shards": "aborted"}}, 'did you mean "abort"?'),
        ({"description": 5}, "put it in quotes"),
        ({"dry_run": "true"}, "write it without quotes"),
        ({"algorithm": {**CONTENT, "extension": "cls"}},
         'it begins with a dot, e.g. ".cls" or ".meta.json"'),
    ],
)  # fmt: skip
def test_hints_say_what_would_help(fields: dict[str, Any], hint: str) -> None:
    assert problem_of(**fields).hint == hint


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
