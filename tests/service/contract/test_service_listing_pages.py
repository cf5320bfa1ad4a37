"""Pages of listings of names that are no UTF-8, or as long as names may be."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dsort.service.objects.places import Listings
from tests.support.service_here import ServiceHere, service_here


@pytest.fixture
def here(tmp_path: Path) -> Iterator[ServiceHere]:
    with service_here(tmp_path) as opened:
        yield opened


@pytest.mark.parametrize("route", ["listings", "shards"])
@pytest.mark.parametrize("is_held", [True, False])
def test_pages_continue_behind_names_that_are_no_text(
    here: ServiceHere, route: str, is_held: bool
) -> None:
    images = here.service.config.run.root / "images"
    images.mkdir()
    for name in (b"a.tar", b"\xff1.tar", b"\xff2.tar", "b%41ß.tar".encode()):
        (images / os.fsdecode(name)).write_bytes(b"")
    found: list[str] = []
    query: dict[str, Any] = {"limit": 1}
    while len(found) < 9:
        page = here.client.get(f"/v1/{route}/images", params=query).json()
        found += [each["name"] for each in page["objects" if route == "listings" else "shards"]]
        if page["next_cursor"] is None:
            break
        query["cursor"] = page["next_cursor"]
        if not is_held:
            here.service.listings = Listings()  # another replica
    assert found == ["a.tar", "b%41ß.tar", r"\xff1.tar", r"\xff2.tar"]


@pytest.mark.parametrize("route", ["listings", "shards"])
def test_pages_continue_behind_the_longest_names(here: ServiceHere, route: str) -> None:
    directory = here.service.config.run.root / "images" / "/".join(["d" * 240] * 10)
    directory.mkdir(parents=True)
    for name in ("1.tar", "2.tar"):
        (directory / name).write_bytes(b"")
    query: dict[str, Any] = {"limit": 1}
    query["cursor"] = here.client.get(f"/v1/{route}/images", params=query).json()["next_cursor"]
    more = here.client.get(f"/v1/{route}/images", params=query)
    assert more.status_code == 200, more.text
