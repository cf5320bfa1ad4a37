"""Laws of specs: the canonical form parses to itself, and JSON and YAML mean the same."""

from __future__ import annotations

import io
import json
from typing import Any
from urllib.parse import quote

import yaml
from hypothesis import given
from hypothesis import strategies as st

from dsort.spec.buckets import bucket_value, parse_bucket
from dsort.spec.load import load_spec, parse_spec
from dsort.spec.part import FieldError
from dsort.spec.syntax import parse_json
from dsort.spec.yaml_text import parse_yaml
from dsort.storage.registry import parse_address

# Texts that YAML 1.1 would take for something else are what goes wrong first.
words = st.sampled_from(["yes", "no", "010", "1:30", "~x", "a b", "é", "- x", "#", "{}", "null."])
texts = words | st.text(st.characters(codec="utf-8", exclude_categories=["C"]), max_size=8)
names = st.from_regex(r"[a-z0-9]{1,6}(/[a-z0-9_-]{1,6})?", fullmatch=True)
output_templates = st.builds(
    "{}{}".format, names, st.sampled_from(["-%06d", "-%d", "-@000999", "-{00..99}", "-{5..9}.tar"])
)
store_names = st.from_regex(r"[a-z0-9]{3,8}(-[a-z0-9]{1,4})?", fullmatch=True)
prefixes = st.lists(
    st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"], exclude_characters="/"))
    .filter(lambda part: part not in ("", ".", "..", ".dsort"))
    .map(lambda part: f"{part} {part}"),
    max_size=3,
).map("/".join)
endpoints = st.builds(
    "{}://{}{}{}".format,
    st.sampled_from(["http", "https", "HTTP"]),
    st.sampled_from(["10.0.0.1", "store.example", "[::1]"]),
    st.sampled_from(["", ":8333"]),
    st.sampled_from(["", "/", "/s3", "/a/b/"]),
)
datasets = st.builds(
    "hf://datasets/{}/{}{}{}".format,
    store_names,
    store_names,
    st.sampled_from(["", "@main", "@v1.0", "@refs%2Fconvert%2Fparquet", f"@{'0a' * 20}"]),
    prefixes.map(lambda prefix: quote(f"/{prefix}") if prefix else ""),
)
sources = datasets | st.fixed_dictionaries({"name": datasets, "endpoint_url": endpoints})
stores = st.one_of(
    st.builds("{}://{}".format, st.sampled_from(["s3", "gs", "az", "ais"]), store_names),
    st.fixed_dictionaries(
        {"name": store_names, "provider": st.sampled_from(["aws", "s3"])},
        optional={
            "prefix": prefixes,
            "endpoint_url": endpoints,
            "region": st.sampled_from(["eu-west-1", "us-east-1"]),
            "profile": texts.filter(str.isprintable),
        },
    ),
    st.fixed_dictionaries(
        {"name": store_names, "provider": st.sampled_from(["gcp", "azure"])},
        optional={"prefix": prefixes, "endpoint_url": endpoints},
    ),
    st.fixed_dictionaries(
        {"name": store_names, "provider": st.just("ais"), "endpoint_url": endpoints},
        optional={"prefix": prefixes},
    ),
)
buckets = st.one_of(
    names,
    st.builds("file:///{}".format, names),
    st.builds(lambda name: {"name": name, "provider": "ais"}, names),
    stores,
)
reactions = st.sampled_from(["ignore", "warn", "abort"])

inputs = st.one_of(
    st.just({}),
    st.builds(lambda name: {"template": f"{name}-{{000..099}}"}, names),
    st.builds(lambda given: {"objnames": given}, st.lists(names, min_size=1, unique=True)),
    st.builds(lambda name: {"prefix": f"{name}/"}, names),
    st.builds(lambda name: {"glob": f"{name}-*.tar"}, names),
)
algorithms = st.one_of(
    st.fixed_dictionaries(
        {"kind": st.just("shuffle")}, optional={"seed": st.integers() | texts.filter(bool)}
    ),
    st.fixed_dictionaries(
        {"kind": st.just("alphanumeric")},
        optional={"natural": st.booleans(), "decreasing": st.booleans()},
    ),
    st.fixed_dictionaries(
        {
            "kind": st.just("content"),
            "extension": st.sampled_from([".cls", ".meta.json"]),
            "content_key_type": st.sampled_from(["int", "float", "string"]),
        },
        optional={
            "content_key_missing": st.sampled_from(["abort", "first", "last"]),
            "json_field": st.just("meta.score"),
            "decreasing": st.booleans(),
        },
    ),
    st.fixed_dictionaries({"kind": st.just("md5")}, optional={"decreasing": st.booleans()}),
    st.just({"kind": "none"}),
)
outputs = st.one_of(
    st.fixed_dictionaries(
        {
            "output_format": output_templates,
            "output_shard_size": st.integers(1, 2**40) | st.sampled_from(["100MB", "1.5 GiB"]),
        }
    ),
    st.fixed_dictionaries(
        {"output_format": output_templates, "output_shard_records": st.integers(1, 1000)}
    ),
    st.fixed_dictionaries(
        {"output_format": output_templates, "output_shard_count": st.integers(1, 5)}
    ),
    st.fixed_dictionaries(
        {
            "ekm": st.dictionaries(output_templates, st.just(None), min_size=1, max_size=3).map(
                lambda each: {name: [f"key{i}", "0" * (i + 3)] for i, name in enumerate(each)}
            ),
            "output_shard_size": st.just("1MB"),
        }
    ),
)
options = st.fixed_dictionaries(
    {},
    optional={
        "output_bck": buckets,
        "description": texts,
        "max_mem_usage": st.sampled_from(["50%", "2GB"]),
        "extract_concurrency_max_limit": st.integers(0, 99),
        "dry_run": st.booleans(),
        "overwrite": st.booleans(),
        "verify": st.sampled_from(["none", "content"]),
        "index": st.sampled_from(["none", "wids", ["dali", "sizes"], []]),
        "duplicate_keys": st.sampled_from(["ignore", "warn", "abort", "drop", "rename"]),
        "Config": st.fixed_dictionaries(
            {},
            optional={
                "missing_shards": reactions,
                "duplicated_records": reactions,
                "ekm_missing_key": reactions,
                "corrupt_shards": st.sampled_from(["abort", "skip"]),
            },
        ),
    },
)


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    """A spec in today's names that is in order."""
    return {
        "input_bck": draw(buckets),
        "input_format": draw(inputs),
        "algorithm": draw(algorithms),
        **draw(outputs),
        **draw(options),
    }


@given(specs())
def test_the_canonical_form_is_the_same_spec_without_warnings(mapping: dict[str, Any]) -> None:
    loaded = parse_spec(mapping)
    assert [each for each in loaded.warnings if "write a unit" not in each] == []  # a few bytes
    canonical = loaded.spec.canonical()
    again = parse_spec(json.loads(json.dumps(canonical)))
    assert again == loaded
    assert again.spec.canonical() == canonical


@given(stores | sources)
def test_a_bucket_written_back_is_the_same_bucket(written: object) -> None:
    ref = parse_bucket(written)
    assert parse_bucket(json.loads(json.dumps(bucket_value(ref)))) == ref
    if ref.is_plain:
        assert parse_bucket(ref.uri) == parse_address(ref.uri) == ref


@given(st.text() | st.text("s3gaz:/@?#%. -_A~").map(lambda text: f"s3:{text}"))
def test_any_text_is_a_bucket_or_a_mistake_of_the_users(text: str) -> None:
    try:
        ref = parse_bucket(text)
    except FieldError:
        return
    assert parse_bucket(ref.uri) == ref


@given(specs())
def test_json_and_yaml_mean_the_same(mapping: dict[str, Any]) -> None:
    as_yaml = yaml.safe_dump(mapping, allow_unicode=True, sort_keys=False)
    from_yaml = load_spec("-", stdin=io.StringIO(as_yaml))
    assert from_yaml == load_spec(json.dumps(mapping)) == parse_spec(mapping)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@given(json_values)
def test_json_read_as_yaml_is_the_same_value(value: object) -> None:
    """YAML contains JSON: a spec may be moved from one file to the other as it is."""
    text = json.dumps(value, ensure_ascii=False)
    assert parse_yaml(text, "spec") == parse_json(text, "spec") == value
