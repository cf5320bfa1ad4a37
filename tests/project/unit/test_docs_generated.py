"""The reference pages say what the program says of itself today."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from docs.generate import MAN, manuals, pages, scripts
from docs.generate.combinations_page import FEATURES, refusal
from docs.generate.sources import command_line, openapi_document, spec_schema
from docs.generate.words import escaped, paragraphs, type_of
from dsort.spec.load import parse_spec
from tests.support.commands import ROOT

GENERATED = ROOT / "docs" / "reference"


@pytest.fixture(scope="module")
def fresh() -> dict[str, str]:
    return pages()


def test_the_reference_is_not_stale(fresh: dict[str, str]) -> None:
    stale = [name for name, text in fresh.items() if (ROOT / "docs" / name).read_text() != text]
    assert not stale, "make docs, and commit what it writes"
    assert {ROOT / "docs" / name for name in fresh} == set(GENERATED.iterdir())


def test_every_command_has_a_man_page_that_is_not_stale() -> None:
    found = manuals()
    stale = [name for name, text in found.items() if (ROOT / name).read_text("utf-8") != text]
    assert not stale, "make man, and commit what it writes"
    assert {ROOT / name for name in found} == set((ROOT / MAN).iterdir())
    assert {f"{MAN}/dsort.1", f"{MAN}/dsort-schedule-add.1"} <= {*found}
    for name, text in found.items():
        odd = [line for line in text.splitlines() if line[:1] in (".", "'")]
        known = (".TH ", ".SH ", ".TP", ".PP", ".nf", ".fi", ".B ")
        assert [line for line in odd if not line.startswith(known)] == [], name
        assert r"\-\-" in text or name.endswith("dsort.1"), name


def test_the_examples_of_the_page_are_those_of_the_repository() -> None:
    (name, text), *_ = scripts().items()
    assert (ROOT / name).read_text("utf-8") == text, "make docs, and commit what it writes"
    examples = [json.loads(line.strip(" ,")) for line in text.splitlines() if line[:3] == "  ["]
    assert len(examples) > 15
    for title, spec in examples:
        assert parse_spec(yaml.safe_load(spec)).spec.output_bck is not None, title


def test_every_field_of_a_spec_is_in_the_reference(fresh: dict[str, str]) -> None:
    for name in spec_schema()["properties"]:
        assert f"### `{name}` {{ #{name.lower()} }}" in fresh["reference/spec.md"]
    assert "#### `algorithm.seed`" in fresh["reference/spec.md"]


def test_the_page_of_combinations_has_each_pair_and_each_reason(fresh: dict[str, str]) -> None:
    page = fresh["reference/combinations.md"]
    rows = [line for line in page.splitlines() if re.match(r"\| [0-9]+ \|", line)]
    assert len(rows) == len(FEATURES)
    for number, row in enumerate(rows, 1):
        cells = [cell.strip() for cell in row.strip("|").split("|")][2:]
        assert all(cells[: number - 1])
        assert not any(cells[number - 1 :])
        for reason in re.findall(r"#(reason-[0-9]+)", row):
            assert f'<a id="{reason}">' in page


@pytest.mark.parametrize(
    ("pair", "field"),
    [
        (("shuffle", "`keep_shards`"), "algorithm"),
        (("`join`", "deduplicate by key"), "deduplicate"),
    ],
)
def test_a_pair_that_is_refused_has_the_reason_of_the_spec(
    pair: tuple[str, str], field: str
) -> None:
    assert refusal(*pair).startswith(f"`{field}")
    assert not any(map(refusal, pair))


def test_every_option_of_every_command_is_in_the_reference(fresh: dict[str, str]) -> None:
    verbs = command_line()
    names = {each.name for each in verbs}
    assert names >= {"dsort start", "dsort schedule add", "dsort token rm"}
    sections = fresh["reference/cli.md"].split("\n## ")
    for verb in verbs:
        (section,) = [each for each in sections if each.startswith(f"`{verb.name}` ")]
        for option in verb.options:
            assert f"`{option.written}`\n:   " in section
    assert "| 129, 130, 143 |" in sections[-1]


def test_every_route_is_in_the_reference(fresh: dict[str, str]) -> None:
    for path, operations in openapi_document()["paths"].items():
        for method in operations:
            assert f"```text\n{method.upper()} {path}\n```" in fresh["reference/rest.md"]


def test_no_place_of_this_machine_is_in_the_reference(fresh: dict[str, str]) -> None:
    for text in fresh.values():
        assert str(ROOT) not in text
        assert "/tmp/" not in text


def test_texts_are_shown_as_they_are() -> None:
    assert escaped("a*b_c <d> `e_f`") == r"a\*b\_c &lt;d&gt; `e_f`"
    assert paragraphs("One\ntwo.\n\n\b\nTry it:\n  dsort ls") == (
        "One two.\n\nTry it:\n\n```console\ndsort ls\n```"
    )


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "string"}, "text"),
        ({"enum": ["a", "b"]}, "one of `a`, `b`"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "whole number"),
        ({"type": "array", "items": {"type": "string"}}, "list of text"),
        ({"$ref": "#/x/Thing"}, "[Thing](#thing)"),
        ({"$ref": "#/x/Other"}, "object"),
    ],
    ids=json.dumps,
)
def test_what_a_field_takes_in_words(schema: dict[str, object], said: str) -> None:
    assert type_of(schema, {"Thing": {}}) == said
