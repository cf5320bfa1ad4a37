"""Every spec and settings file that a page shows is one. (The commands of the pages add their
schedules to a service, in ``tests/project/jobs/test_docs_commands.py``.)"""

from __future__ import annotations

from pathlib import Path

import pytest

from dsort.settings import load_settings
from dsort.spec.load import load_spec, read_fields, read_transform
from tests.support.commands import ROOT
from tests.support.doc_pages import Block, blocks, hand_written

SCHEDULES = {"nightly.yaml"}
TRANSFORMS = {"slim.yaml"}
OTHERS = {"nightly-cronjob.yaml"}  # no file of dsort's: see test_recipes_page
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
