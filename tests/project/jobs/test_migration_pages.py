"""The page for those who come from webdataset: each stage of a pipeline, run by webdataset itself,
and the spec that does the same. Both give the same records."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from dsort.spec.load import load_spec
from tests.support.commands import ROOT
from tests.support.doc_pages import Block, blocks

pytestmark = pytest.mark.usefixtures("workers_here")

PAGE = ROOT / "docs" / "migration" / "webdataset.md"
Record = tuple[str, tuple[tuple[str, bytes], ...]]


def records_of(samples: Iterable[dict[str, Any]]) -> list[Record]:
    """What is in samples that is not webdataset's own; copies have the keys of what they are of."""
    return [
        (
            re.sub(r"~\d+$", "", sample["__key__"]),
            tuple(sorted(item for item in sample.items() if not item[0].startswith("__"))),
        )
        for sample in samples
    ]


def test_each_stage_gives_the_records_that_its_spec_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import webdataset as wds  # few tests want it

    import dsort

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    found: dict[str, Any] = {}
    pairs: list[str] = []
    for block in blocks(PAGE):
        if block.tag == "python" and not block.title:
            exec(block.text, found)
        elif block.title.endswith(".py"):
            block.write(tmp_path)
        elif block.tag == "yaml":
            theirs = records_of(found.pop("samples"))
            spec = load_spec(block.write(tmp_path)).spec
            dsort.run(spec, options=dsort.RunOptions(root=tmp_path, workers=1))
            shards = sorted(map(str, (tmp_path / spec.output_bck.path).glob("*.tar")))
            ours = records_of(wds.WebDataset(shards, shardshuffle=False))
            ordered = spec.algorithm.kind == "none"
            assert (ours if ordered else sorted(ours)) == (theirs if ordered else sorted(theirs)), (
                block.title
            )
            assert ours != []
            pairs.append(block.title)
    assert len(pairs) == 11


def test_every_pipeline_of_the_page_has_its_spec() -> None:
    """One behind the other, so that none of them is left out above."""

    def kind(block: Block) -> str:
        return "spec" if block.tag == "yaml" else ("samples = " in block.text and "pipeline") or ""

    kinds = [kind(block) for block in blocks(PAGE) if kind(block)]
    assert kinds == ["pipeline", "spec"] * (len(kinds) // 2)
