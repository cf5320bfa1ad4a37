"""Debian's Chromium without a window, driven by Playwright.

Playwright's own browsers are not downloaded: the distribution's package is used, and installed
where a test may do so. Without the package a test is skipped; where ``CI`` is set, it fails.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.support.debian import CannotInstall, apt_install, skip_outside_ci

if TYPE_CHECKING:
    from playwright.sync_api import Browser


PROGRAMS = ("chromium", "chromium-browser")
FEATURES_OFF = (
    # The list below the address bar, which no test uses: it makes two pages for each window, which
    # take half a second of a processor.
    "WebUIOmniboxPopup",
    "WebUIOmniboxAimPopup",
    # This list replaces Playwright's own list of features, so it repeats that list.
    "AimEnabled",
    "AvoidCorsURLLoaderRestartOnRedirect",
    "AvoidUnnecessaryBeforeUnloadCheckSync",
    "DestroyProfileOnBrowserClose",
    "HttpsFirstBalancedModeAutoEnable",
    "HttpsUpgrades",
    "LensOverlay",
    "MediaRouter",
    "NetworkTimeServiceQuerying",
    "OptimizationHints",
    "PaintHolding",
    "PreconnectToSearch",
    "ThirdPartyStoragePartitioning",
)
ARGUMENTS = (
    "--no-sandbox",  # Chromium has no sandbox for root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    f"--disable-features={','.join(FEATURES_OFF)}",
)


def find_chromium() -> str:
    """The path of Chromium, which is installed if it is missing. Skips the test if that fails."""
    found = _installed()
    if found is None:
        try:
            apt_install("chromium")
        except CannotInstall as error:
            skip_outside_ci(f"Chromium cannot be had: {error.reason}")
        found = _installed()
    if found is None:
        skip_outside_ci("Chromium was installed, but there is no program of that name")
    return found


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser for the block."""
    program = find_chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


def _installed() -> str | None:
    return next((path for name in PROGRAMS if (path := shutil.which(name))), None)
