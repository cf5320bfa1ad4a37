"""A service with jobs in every state, and a browser that is signed in to it, for each file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.chromium import chromium
from tests.support.web_data import write_data
from tests.support.web_gallery import Gallery, gallery
from tests.support.web_looks import dress
from tests.support.web_page import careful_context, go, signed_in
from tests.support.workers_here import WorkersHere

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gallery]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dsort.opened_job.LocalRuntime", WorkersHere)
        root = tmp_path_factory.mktemp("states")
        write_data(root / "photos")
        with gallery(root) as found:
            yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def context(place: Gallery, browser: Browser) -> Iterator[BrowserContext]:
    with careful_context(browser, place.url) as made:
        yield made


@pytest.fixture(scope="module")
def tab(place: Gallery, context: BrowserContext) -> Page:
    return go(signed_in(context, place.tokens["alice"]), "#/jobs")


@pytest.fixture
def page(tab: Page) -> Page:
    """Alice's browser, the same for all tests of this file: wide and light."""
    return dress(tab, "light")
