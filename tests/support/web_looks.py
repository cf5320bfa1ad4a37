"""The looks of a page that tests check: light, dark and on a phone."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.support.axe import axe_findings
from tests.support.web_page import PHONE, WIDE, cut_off, shoot

if TYPE_CHECKING:
    from playwright.sync_api import Page


LOOKS = ("light", "dark", "phone")
NOT_PLAIN = re.compile(r"[Cc]ame of|[Mm]oves by|[Pp]lans, too| --[a-z]+|NaN|undefined|\[object")
"""Words that confused readers, options of the command line, and values that are no text."""


def dress(page: Page, look: str) -> Page:
    """Set the look of a page: light, dark, or as wide as a phone."""
    width, height = PHONE if look == "phone" else WIDE
    page.set_viewport_size({"width": width, "height": height})
    page.emulate_media(color_scheme="dark" if look == "dark" else "light")
    return page


GO_THERE = """(address) => new Promise((resolve) => {
  const before = location.hash;
  addEventListener("hashchange", () => resolve(), { once: true });
  location.hash = address;
  if (location.hash === before) resolve();
})"""
"""Resolves when the address has changed. Before that, a sign of the new page may belong to the old
page."""


def show(page: Page, address: str, sign: str) -> Page:
    """Show another page, without a reload."""
    page.evaluate(GO_THERE, address)
    page.locator(sign).first.wait_for()
    return page


def look_at(page: Page, name: str, look: str) -> None:
    """Keep a picture of the page, and check that nothing is wrong with it."""
    shoot(page, f"states/{name}-{look}")
    wrong = [*axe_findings(page), *(f"cut off: {each}" for each in cut_off(page))]
    wrong += NOT_PLAIN.findall(page.locator("body").inner_text())
    assert wrong == []
