"""The example specs are in order, keep to today's names, and are in their table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from dsort.spec.load import load_spec, parse_spec
from dsort.spec.model import schema
from dsort.spec.syntax import parse_json
from dsort.spec.yaml_text import parse_yaml
from tests.support.spec_cases import BLOG_POST

SPECS = Path(__file__).parents[3] / "specs"
EXAMPLES = sorted(path for path in SPECS.iterdir() if path.suffix in (".json", ".yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_loads_with_the_warnings_that_it_is_there_for(path: Path) -> None:
    loaded = load_spec(path)
    expected = {"blog-post.json": 3}
    assert len(loaded.warnings) == expected.get(path.name, 0), loaded.warnings
    assert loaded.spec.description
    assert parse_spec(loaded.spec.canonical()).spec == loaded.spec


@pytest.mark.sample(keep=8)
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_in_todays_names_fits_the_schema(path: Path) -> None:
    parse = parse_json if path.suffix == ".json" else parse_yaml
    is_valid = Draft202012Validator(schema()).is_valid(parse(path.read_text(), path.name))
    assert is_valid == (path.name != "blog-post.json")


def test_the_blog_post_is_verbatim() -> None:
    assert parse_json((SPECS / "blog-post.json").read_text(), "blog-post.json") == BLOG_POST


def test_the_examples_but_the_blog_posts_share_their_input_and_no_output() -> None:
    specs = [load_spec(path).spec for path in EXAMPLES if path.name != "blog-post.json"]
    sources = {source.bucket.uri for spec in specs for source in spec.sources}
    assert sources == {"samples", "s3://samples/train", "images", "captions", "pets"}
    outputs = [spec.output_bck.uri for spec in specs]
    assert len(set(outputs)) == len(outputs)


def test_every_example_is_in_the_table_and_the_files_they_need_are_there() -> None:
    named = re.findall(r"^\| \[([^]]+)\]\(\1\)", (SPECS / "README.md").read_text(), re.MULTILINE)
    there = [*EXAMPLES, *SPECS.glob("schedules/*")]
    assert sorted(named) == sorted(path.relative_to(SPECS).as_posix() for path in there)
    for path in EXAMPLES:
        key_map = load_spec(path).spec.ekm_file
        assert key_map is None or Path(key_map).is_file()
