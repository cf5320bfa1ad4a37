"""The snippets of the pages about loaders that the test of all pages does not run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import ROOT
from tests.support.datasets import small_dataset, write_shards
from tests.support.doc_pages import Block, blocks
from tests.support.ray_here import ray_here

pytestmark = pytest.mark.ray
ray = pytest.fixture(scope="module")(ray_here)
PAGES = [ROOT / "docs" / f"{name}.md" for name in ("other-loaders", "loaders-of-other-formats")]


def files() -> list[Block]:
    return [each for page in PAGES for each in blocks(page) if each.tag == "python" and each.title]


@pytest.mark.exhaustive
def test_ray_data_reads_every_record(tmp_path: Path, ray: Any) -> None:
    write_shards(tmp_path, small_dataset(1, shards=4, records=10, extensions=("bin",)))
    (block,) = (each for each in files() if "ray_data" in each.title)
    found: dict[str, Any] = {}
    exec(block.text, found)
    assert found["count"](str(tmp_path)) == 40
