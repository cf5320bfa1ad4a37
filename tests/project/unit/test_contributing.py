"""What CONTRIBUTING.md says of a seam names all that the seam has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dsort.containers.base import Container
from dsort.containers.codecs.base import Codec
from dsort.sidecars.base import Sidecar
from dsort.transforms.base import Step

TEXT = (Path(__file__).parents[3] / "CONTRIBUTING.md").read_text()


@pytest.mark.parametrize(
    ("title", "seam"),
    [("A container", Container), ("A codec", Codec), ("A step", Step), ("A sidecar", Sidecar)],
)
def test_everything_that_a_child_may_say_is_named(title: str, seam: type) -> None:
    start = TEXT.index(f"### {title} (")
    section = TEXT[start : TEXT.index("\n### ", start)]
    public = {name for name in (*vars(seam), *seam.__annotations__) if not name.startswith("_")}
    named = set(re.findall(r"`(\w+)", section))
    assert public - named == set()
