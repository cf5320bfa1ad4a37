"""The files of the web page: what they are served with, that they are all there, and that they keep
to what the page promises: nothing from elsewhere, no script in the markup, text only as text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from tests.support.commands import ROOT
from tests.support.service_here import service_here

WEB = ROOT / "dsort" / "web" / "static"
SCRIPTS = sorted(WEB.glob("*.js"))
SERVED = sorted(
    path.name
    for path in WEB.iterdir()
    if path.suffix in (".css", ".js", ".svg") and path.name != "report.js"
)
LINES_MAX, STYLE_LINES_MAX = 400, 1400
CLASSIC = ("api_docs.js", "theme.js")
"""The scripts that are no modules."""
MAKES_MARKUP = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment"
    r"|\beval\(|new Function|setAttribute\(\"(style|on)|javascript:"
)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with service_here(tmp_path_factory.mktemp("pages"), no_auth=False) as here:
        yield here.client


@pytest.mark.parametrize("path", ["/", *(f"/web/{name}" for name in SERVED)])
def test_each_file_is_served_safely_and_without_a_token(client: TestClient, path: str) -> None:
    kinds = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml", "": "text/html"}
    answer = client.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"].partition(";")[0] == kinds[Path(path).suffix]
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cache-control"] == "no-cache"


def test_who_has_a_file_already_does_not_get_it_again(client: TestClient) -> None:
    first = client.get("/web/app.js")
    again = client.get(
        "/web/app.js", headers={"If-None-Match": f'"other", {first.headers["etag"]}'}
    )
    assert (again.status_code, again.content) == (304, b"")
    assert client.get("/web/app.js", headers={"If-None-Match": '"other"'}).content == first.content
    head = client.head("/")
    assert (head.status_code, head.content) == (200, b"")


@pytest.mark.parametrize(
    "path", ["/web/report.html", "/web/no.js", "/web/..%2fpages.py", "/web/%2e%2e/config.py"]
)
def test_nothing_else_is_served(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"


def test_the_page_names_all_its_files_and_no_others(client: TestClient) -> None:
    page, api = client.get("/").text, client.get("/docs").text
    named = re.findall(r'(?:src|href)="web/([^"]+)"', page)
    of_api = re.findall(r'(?:src|href)="/web/([^"]+)"', api)
    assert all(client.get(f"/web/{name}").status_code == 200 for name in of_api)
    assert set(named) == set(SERVED) - set(of_api)
    preloaded = re.findall(r'<link rel="modulepreload" href="web/([^"]+)">', page)
    assert len(preloaded) == len(set(preloaded))
    scripts = re.findall(r'<script( type="module")? src="web/([^"]+)"></script>', page)
    # The theme is there before anything is drawn; modules wait for the document.
    assert scripts == [("", "theme.js"), (' type="module"', "app.js")]
    assert re.findall(r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son\w+=|https?:", page) == []


def imports_of(name: str) -> dict[str, set[str]]:
    """The names that a module imports, by the module that they are of."""
    text = (WEB / name).read_text(encoding="utf-8")
    statement = r'^import \{([^}]*)\} from "\./([^"]+)";$'
    return {
        module: {each.strip() for each in names.split(",") if each.strip()}
        for names, module in re.findall(statement, text, re.MULTILINE)
    }


def declared_in(name: str, *, exported: bool) -> list[str]:
    """The names that a module declares at its top level."""
    text = (WEB / name).read_text(encoding="utf-8")
    start = "export " if exported else "(?:export )?"
    kind = r"(?:async )?(?:const|let|function\*?|class)"
    found = re.findall(rf"^{start}{kind} (\w+|\[[^\]]*\])", text, re.MULTILINE)
    return [each for names in found for each in re.findall(r"\w+", names)]


def test_every_module_is_imported_and_has_what_is_asked_of_it() -> None:
    seen, ahead = set(), ["app.js", "report.js"]
    while ahead:
        name = ahead.pop()
        for module, names in imports_of(name).items():
            assert names <= set(declared_in(module, exported=True)), f"{name} of {module}"
            ahead += [] if module in seen else [module]
        seen.add(name)
    assert seen == {path.name for path in SCRIPTS} - set(CLASSIC)


def test_the_report_is_one_module_of_files_in_the_order_of_their_imports() -> None:
    listed = (WEB / "report_files.txt").read_text(encoding="utf-8").splitlines()
    names = [line for line in listed if line.endswith(".js") and not line.startswith("#")]
    for at, name in enumerate(names):
        assert imports_of(name).keys() <= set(names[:at])
    declared = [each for name in names for each in declared_in(name, exported=False)]
    assert len(declared) == len(set(declared))  # they share one scope


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_small_strict_and_never_make_markup_of_text(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    is_strict = bool(re.search(r"^(import|export) ", text, re.MULTILINE))  # as all modules are
    assert is_strict is (path.name not in CLASSIC)
    assert is_strict or text.startswith('"use strict";\n')
    assert len(text.splitlines()) <= LINES_MAX
    assert MAKES_MARKUP.findall(text) == []
    # Its objects are never taken for attributes of elements: dom.js reads all JSON.
    assert path.name == "dom.js" or not re.search(r"JSON\.parse|\.json\(\)", text)


@pytest.mark.parametrize("path", sorted(WEB.glob("*.css")), ids=lambda path: path.name)
def test_styles_are_small_and_load_nothing(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= STYLE_LINES_MAX
    assert re.findall(r"@import|url\(", text) == []
