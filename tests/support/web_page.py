"""A browser that opens the service's web page, and must report no error."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.support.commands import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

__all__ = [
    "PHONE",
    "WIDE",
    "await_text",
    "careful_context",
    "cut_off",
    "go",
    "shoot",
    "signed_in",
]

PATIENCE_MS = 30_000
SCREENSHOTS = ROOT / "test-output" / "screenshots"
WIDE, PHONE = (1280, 900), (390, 844)
CUT_OFF = """() => {
  const meant = "pre, textarea, input, .editor, .help, .tall, .sr, .why, .what > a, select, " +
    ".sample *, canvas, .cards:not(.jobs) thead, .stacked thead";
  const tooWide = [...document.querySelectorAll("body *")].filter((each) => {
    if (each.closest(meant) || each.closest("svg") || !each.checkVisibility()) return false;
    const hides = getComputedStyle(each).overflowX !== "visible";
    const { right, left } = each.getBoundingClientRect();
    const outside = right > innerWidth + 1 || (left < -1 && !each.matches(".skip"));
    return outside || (hides && each.scrollWidth > each.clientWidth + 1);
  });
  return tooWide.map((each) =>
    `${each.tagName} ${each.className} ${each.textContent}`.slice(0, 80));
}"""
OWN = ("file:", "blob:", "data:")


@contextlib.contextmanager
def careful_context(browser: Browser, url: str) -> Iterator[BrowserContext]:
    """A fresh browser context for a service at ``url``. At its end, checks that there was no error,
    no warning, no dialog, and no request to another server."""
    width, height = WIDE
    made = browser.new_context(base_url=url, viewport={"width": width, "height": height})
    made.set_default_timeout(PATIENCE_MS)
    complaints: list[str] = []

    def listen(page: Page) -> None:
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: hear(message.type, message.text))
        page.on("dialog", lambda dialog: complaints.append(f"a dialog: {dialog.message}"))
        page.on("request", lambda request: see(request.url))

    def hear(kind: str, text: str) -> None:
        # A refusal by the service is no error of the page, which shows it. A network that a test
        # has turned off is no error either.
        refusal = re.search(
            r"the server responded with a status of 4\d\d|ERR_INTERNET_DISCONNECTED", text
        )
        if kind in ("error", "warning") and not refusal:
            complaints.append(text)

    def see(address: str) -> None:
        if not address.startswith((url, *OWN)):
            complaints.append(f"a request to {address}")

    made.on("page", listen)
    try:
        yield made
    finally:
        made.close()
    assert complaints == []


def signed_in(context: BrowserContext, token: str) -> Page:
    """A tab that has this token."""
    # The empty page with which a tab begins has no storage.
    script = f"origin === 'null' || sessionStorage.setItem('dsort-token', {json.dumps(token)})"
    context.add_init_script(script)
    return context.new_page()


def go(page: Page, address: str) -> Page:
    """Show the page of this address (``#/jobs``)."""
    page.goto(f"/{address}")
    return page


def await_text(page: Page, selector: str, text: str) -> None:
    """Wait until an element that ``selector`` matches contains ``text``."""
    page.locator(selector).filter(has_text=text).first.wait_for()


def shoot(page: Page, name: str) -> None:
    """Keep a picture of the whole page."""
    path = SCREENSHOTS / f"{name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    page.evaluate("document.activeElement.blur(); window.scrollTo(0, 0)")
    page.screenshot(path=path, full_page=True)


def cut_off(page: Page) -> list[str]:
    """The elements that do not fit into their place or the screen, so that a user cannot see all of
    their text. Texts that end with "…" are left out, and elements that can be scrolled (specs, logs
    and tables of counts)."""
    found: list[str] = page.evaluate(CUT_OFF)
    return found
