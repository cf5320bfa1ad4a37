"""The pages build into a site without a warning, and the site needs no network to be read."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urljoin

import pytest

from tests.support.commands import ROOT

LOADED = re.compile(r"<(?:script|img|iframe|source|link)\b[^>]*?\s(?:src|href)=\"?([^\"\s>]+)")
REMOTE = ("http:", "https:", "//")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as ``make docs`` builds it."""
    directory = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(directory)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return directory


def test_every_page_is_built(site: Path) -> None:
    sources = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    built = {path.relative_to(site) for path in site.rglob("*.html")}
    assert built - {Path("404.html")} == {path.with_suffix(".html") for path in sources}
    assert not list(site.rglob("*.py"))


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    loaded = {
        (path.name, address)
        for path in site.rglob("*.html")
        for address in LOADED.findall(path.read_text("utf-8"))
    }
    assert any(address.endswith(".css") for _, address in loaded)
    assert any(address.endswith(".js") for _, address in loaded)
    assert not [each for each in loaded if each[1].startswith(REMOTE)]
    styles = [path.read_text("utf-8") for path in site.rglob("*.css")]
    assert not [
        found for text in styles for found in re.findall(r"url\([\"']?(?:https?:)?//", text)
    ]


def test_every_file_that_a_page_loads_is_there(site: Path) -> None:
    for path in site.rglob("*.html"):
        base = "/" + path.relative_to(site).as_posix()
        for address in LOADED.findall(path.read_text("utf-8")):
            name = urljoin(base, address).partition("?")[0].lstrip("/")
            assert (site / name).exists(), f"{path.name}: {address}"


def test_links_of_the_readme_lead_somewhere(site: Path) -> None:
    """Those of pages are looked at by the strict build; these lead to files, and to their heads."""
    for page in ("README.md", "CONTRIBUTING.md"):
        for target in re.findall(r"\]\(([^)\s]+)\)", (ROOT / page).read_text("utf-8")):
            name, _, anchor = target.partition("#")
            assert (ROOT / name).exists(), f"{page}: {target}"
            if anchor:
                html = (site / name).relative_to(site / "docs").with_suffix(".html")
                assert f'id="{anchor}"' in (site / html).read_text("utf-8"), f"{page}: {target}"
