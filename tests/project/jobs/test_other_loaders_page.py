"""The snippets of the page about loaders that the test of all pages does not run."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import ROOT
from tests.support.datasets import small_dataset, write_shards
from tests.support.doc_pages import Block, blocks
from tests.support.ray_here import ray_here

pytestmark = pytest.mark.ray
ray = pytest.fixture(scope="module")(ray_here)
PAGE = ROOT / "docs" / "other-loaders.md"


def files() -> list[Block]:
    return [each for each in blocks(PAGE) if each.tag == "python" and each.title]


def test_snippets_that_are_files_are_python_and_count_what_they_read() -> None:
    for block in files():
        assert ast.parse(block.text), block.title
        assert re.search(r"160|count\(\)|sum\(1 for", block.text), block.title


def test_the_page_says_of_each_loader_whether_its_snippet_is_run() -> None:
    text = PAGE.read_text("utf-8")
    rows = re.findall(r"(?m)^\| \[(.+?)\]\(#(.+?)\).* \| (.+) \|$", text)
    assert len(rows) == 12
    assert {state.split(",")[0].split(" (")[0] for _, _, state in rows} <= {
        "run by our tests",
        "run by hand",
        "not run",
    }


@pytest.mark.exhaustive
def test_ray_data_reads_every_record(tmp_path: Path, ray: Any) -> None:
    write_shards(tmp_path, small_dataset(1, shards=4, records=10, extensions=("bin",)))
    (block,) = (each for each in files() if "ray_data" in each.title)
    found: dict[str, Any] = {}
    exec(block.text, found)
    assert found["count"](str(tmp_path)) == 40
