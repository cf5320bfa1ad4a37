"""The reference pages say what the program says of itself today, and the specs that pages show are
specs."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest
import yaml

from docs.generate import MAN, manuals, pages, scripts
from docs.generate.combinations_page import BASE, CODECS, CONTAINERS, FEATURES, refusal
from docs.generate.sources import command_line, openapi_document, spec_schema
from dsort.settings import load_settings
from dsort.spec.load import load_spec, parse_spec, read_fields, read_transform
from tests.support.commands import ROOT
from tests.support.doc_pages import Block, blocks, hand_written

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


def test_the_page_of_combinations_has_each_container_and_each_codec(fresh: dict[str, str]) -> None:
    page = fresh["reference/combinations.md"]
    containers, codecs = page.partition("## Containers")[2].split("\n| container |")
    for name in FEATURES:
        (row,) = [line for line in containers.splitlines() if line.startswith(f"| {name} |")]
        assert row.count("|") == len(CONTAINERS) + 2
    for each in CONTAINERS:
        (row,) = [line for line in codecs.splitlines() if line.startswith(f"| `{each}` |")]
        assert row.count("|") == len(CODECS) + 2


def test_each_container_can_be_converted_into_each_other_one() -> None:
    for one, other in itertools.permutations(CONTAINERS, 2):
        parse_spec({**BASE, "input_extension": one, "output_extension": other})


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


SCHEDULES = {"nightly.yaml"}
TRANSFORMS = {"slim.yaml"}
OTHERS = {"nightly-cronjob.yaml", "output"}  # no files of dsort's
TITLED = [
    (page, each)
    for page in hand_written()
    for each in blocks(page)
    if each.title and each.tag != "python" and each.title not in SCHEDULES | OTHERS
]


@pytest.mark.parametrize(
    ("page", "block"),
    TITLED,
    ids=[f"{page.relative_to(ROOT)}: {block.title}" for page, block in TITLED],
)
def test_a_file_of_a_page_is_what_it_says(page: Path, block: Block, tmp_path: Path) -> None:
    path = block.write(tmp_path)
    if path.name == "dsort.toml":
        settings = load_settings({}, tmp_path, tmp_path)
        assert settings.stores or settings.commands
    elif path.name in TRANSFORMS:
        fields, _ = read_fields(path)
        assert read_transform(fields)[1].steps
    else:
        loaded = load_spec(path)
        older_names = 3 if path.name == "blog-post.json" else 0
        assert len(loaded.warnings) == older_names, loaded.warnings


def test_every_block_of_yaml_json_or_toml_is_such_a_file() -> None:
    untitled = [
        each.text
        for page in hand_written()
        for each in blocks(page)
        if each.tag in ("yaml", "json", "toml") and not each.title
    ]
    assert not untitled
