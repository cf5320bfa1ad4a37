"""The heat maps of the README: what a job did is visible on a light and on a dark page."""

from __future__ import annotations

import re

from docs.generate.pictures import PICTURES, heat_maps

STRENGTH = re.compile(r'class="cell" fill-opacity="([\d.]+)"')


def strengths(picture: str) -> list[float]:
    return [float(each) for each in STRENGTH.findall(picture)]


def test_records_in_one_output_shard_are_one_full_cell() -> None:
    rows = [[5, 0], [0, 5]]
    assert strengths(heat_maps(rows, rows)) == [1.0] * 4


def test_an_even_spread_over_many_output_shards_is_visible() -> None:
    even = [[1] * 25 for _ in range(25)]
    assert set(strengths(heat_maps(even, even))) == {0.2}


def test_the_picture_has_colours_for_both_schemes_and_visible_cells() -> None:
    picture = (PICTURES / "mixing.svg").read_text()
    assert "prefers-color-scheme:dark" in picture
    assert min(strengths(picture)) > 0.05
