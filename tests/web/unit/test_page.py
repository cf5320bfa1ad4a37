"""A job's page is one document, and one HTML file that loads nothing and that nothing in a job can
break out of. The files of the web page keep to the same: nothing from elsewhere, no script in the
markup, text only as text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from dsort.errors import InputError
from dsort.web.job_page import SHARDS_SHOWN, html, page_of_job, page_of_manifest, page_of_report
from tests.support.commands import ROOT
from tests.support.internals import ManifestInput, ManifestOutput, Mixing, ReactionCount
from tests.support.manifests import manifest_bytes
from tests.support.refusals import raises
from tests.support.service_here import service_here

MIXING: dict[str, Any] = {
    "input_shards": 2,
    "output_shards": 2,
    "input_bins": 2,
    "output_bins": 2,
    "output_bin_shards": 1,
    "counts": [[1, 2], [2, 1]],
    "chi2": 0.0,
    "degrees_of_freedom": 0,
    "p_value": 1.0,
    "verdict": "too_few",
}
SPEC = {
    "description": "",
    "input_bck": {"provider": "aws", "name": "images", "prefix": "train"},
    "output_bck": "out",
    "algorithm": {"kind": "shuffle", "seed": "7"},
}
VIEW = {"job_id": "job-1", "state": "running", "description": "nightly", "phases": []}


def manifest(*, outputs: int = 2, **fields: Any) -> dict[str, Any]:
    """A manifest as it is read from a bucket."""
    data = manifest_bytes(
        job_id="job-1",
        spec=SPEC,
        inputs=[ManifestInput(f"in-{n}.tar", 100, 0, "e", 3) for n in range(2)],
        outputs=[ManifestOutput(f"o-{n}.tar", 3, 3, 30, 90, "00") for n in range(outputs)],
        making={
            "move": {"way": "map", "reason": "it fits", "workers": 2},
            "phase_seconds": {"resolve": 1.0, "extract": 4.0},
            "reactions": [ReactionCount("missing_shards", 5, ("a.tar",))],
            "timeline": [(0.0, "extract", 0, 0.0), (4.0, "extract", 200, 50.0)],
            "mixing": Mixing(**MIXING),
        },
    )
    return {**json.loads(data), "created": "2026-01-31T12:00:05+00:00", **fields}


# --- the document


def test_a_manifest_tells_all_that_a_page_shows() -> None:
    page = page_of_manifest(manifest(), output_uri="file:///data/out")
    job = page["job"]
    assert (page["title"], job["state"], job["exit_code"]) == ("Job job-1", "finished", 0)
    assert (job["input_uri"], job["output_uri"]) == ("s3://images/train", "file:///data/out")
    assert (job["started_at"], job["ended_at"]) == (
        "2026-01-31T12:00:00.000Z",
        "2026-01-31T12:00:05.000Z",
    )
    assert job["owner"] is None
    assert job["result"]["records"] == 6
    assert page["phases"] == [
        {"phase": "resolve", "seconds": 1.0, "shards": None, "records": None, "bytes": None},
        {"phase": "extract", "seconds": 4.0, "shards": 2, "records": 6, "bytes": 200},
    ]
    assert page["timeline"] == [[0.0, "extract", 0, 0.0], [4.0, "extract", 200, 50.0]]
    assert page["inputs"] == {"total": 2, "bytes": 200}
    assert page["shards"] == {
        "total": 2,
        "rows": [["o-0.tar", 3, 90], ["o-1.tar", 3, 90]],
        "sizes": {"smallest": 90, "median": 90, "largest": 90, "counts": [2]},
        "records": {"smallest": 3, "median": 3, "largest": 3, "counts": [2]},
    }
    assert page["warnings"] == [{"kind": "missing_shards", "count": 5, "samples": ["a.tar"]}]
    assert page["mixing"] == {**MIXING, "before": [[3, 0], [0, 3]], "cells": None}


def test_the_picture_has_the_cells_that_the_test_compares() -> None:
    # 96 input shards in 48 bins, 5 output bins of 4 shards (the last has 1), of which 1 is empty.
    counts = [[2, 3, 0, 2, 1] for _ in range(48)]
    shape = {"input_shards": 96, "output_shards": 17, "input_bins": 48, "output_bins": 5}
    mixing = {**MIXING, **shape, "output_bin_shards": 4, "counts": counts}
    cells = page_of_manifest(manifest(mixing=mixing))["mixing"]["cells"]
    assert sum(map(sum, cells["counts"])) == sum(map(sum, counts)) == sum(map(sum, cells["before"]))
    assert cells["outputs"] == [[0, 3], [4, 7], [12, 15], [16, 16]]
    firsts = [first for first, _ in cells["inputs"]]
    assert (firsts[0], cells["inputs"][-1][1]) == (0, 95)
    assert firsts[1:] == [last + 1 for _, last in cells["inputs"][:-1]]  # none is left out
    assert len(cells["counts"]) == len(cells["inputs"]) < 48  # merged, until 5 are expected
    for row, (first, last) in zip(cells["counts"], cells["inputs"], strict=True):
        assert sum(row) == 8 * (last - first + 1) // 2


def test_a_table_that_dsort_did_not_write_is_not_judged() -> None:
    mixing = {**MIXING, "counts": [[9] * 200 for _ in range(200)]}
    assert page_of_manifest(manifest(mixing=mixing))["mixing"]["cells"] is None
    with raises(InputError):
        page_of_manifest(manifest(mixing={**MIXING, "counts": [[1 << 70]]}))


def test_the_sizes_of_all_shards_are_spread_over_a_few_bars() -> None:
    many = manifest(outputs=SHARDS_SHOWN + 5)
    for at, each in enumerate(many["outputs"]):
        each["file_bytes"] = 1000 + at
    sizes = page_of_manifest(many)["shards"]["sizes"]
    assert (sizes["smallest"], sizes["largest"]) == (1000, 1000 + SHARDS_SHOWN + 4)
    assert sizes["median"] == 1000 + (SHARDS_SHOWN + 5) // 2
    assert (len(sizes["counts"]), sum(sizes["counts"])) == (24, SHARDS_SHOWN + 5)


def test_a_running_job_shows_how_fast_it_is() -> None:
    samples = [
        {"at": 1000.0, "phase": "resolve", "elapsed_s": 0.0, "bytes_done": 0},
        {"at": 1003.0, "phase": "extract", "elapsed_s": 2.0, "bytes_done": 100},
        {"at": 1005.0, "phase": "extract", "elapsed_s": 4.0, "bytes_done": 500},
        {"at": 1005.5, "phase": "create", "elapsed_s": 0.0, "bytes_done": 0},
    ]
    page = page_of_job({**VIEW, "result": None}, samples)
    assert page["timeline"] == [
        [0.0, "resolve", 0, 0.0],
        [1.0, "extract", 0, 0.0],
        [3.0, "extract", 100, 50.0],
        [5.0, "extract", 500, 200.0],
        [5.5, "create", 0, 0.0],
    ]
    assert (page["title"], page["mixing"], page["shards"]["total"]) == ("nightly", None, 0)


def test_a_job_whose_coordinator_died_goes_back_in_phases_but_not_in_time() -> None:
    ended_phases = [(10.0, "extract", 1.0), (12.0, "create", 1.0), (13.0, "extract", 4.0)]
    samples = [
        {"at": at, "phase": phase, "elapsed_s": elapsed_s, "bytes_done": 1}
        for at, phase, elapsed_s in ended_phases
    ]
    times = [row[0] for row in page_of_job(VIEW, samples)["timeline"]]
    assert times == sorted(times)


@pytest.mark.parametrize("document", [[], {}, {"inputs": 3}, "text", None])
def test_something_else_is_refused(document: Any) -> None:
    for make in (page_of_manifest, page_of_report):
        with raises(InputError):
            make(document)


# --- as HTML


class Seen(HTMLParser):
    """The elements of a page, and what is in scripts, styles and the title."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, str] = {}
        self._in = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        kind = dict(attrs).get("type")
        self._in = f"{tag} {kind}" if kind else tag

    def handle_endtag(self, tag: str) -> None:
        self._in = ""

    def handle_data(self, data: str) -> None:
        self.text[self._in] = self.text.get(self._in, "") + data


def seen(text: str) -> Seen:
    parser = Seen()
    parser.feed(text)
    parser.close()
    return parser


NASTY = (
    "</script><script>alert(1)</script><!--{{page}}{{style}} & \u2028\u2029 </style> "
    "</title> \udcff \U0001f600 \\u003c"
)


def test_nothing_in_a_job_breaks_out_of_its_page() -> None:
    plain = seen(html(page_of_manifest(manifest())))
    page = page_of_manifest(manifest())
    page["title"] = page["job"]["description"] = NASTY
    page["shards"]["rows"] = [[NASTY, 1, 2]]
    text = html(page)
    text.encode("utf-8")  # halves of characters would not go into a file
    nasty = seen(text)
    assert nasty.tags[: len(plain.tags)] == plain.tags
    assert len(nasty.tags) == len(plain.tags)
    assert json.loads(nasty.text["script application/json"]) == page
    assert nasty.text["style"] == plain.text["style"]
    assert nasty.text["script module"] == plain.text["script module"]
    assert nasty.text["title"] == NASTY.replace("\udcff", "?")


def test_a_page_loads_nothing_and_allows_only_what_is_in_it() -> None:
    found = seen(html(page_of_manifest(manifest())))
    for tag, attributes in found.tags:
        assert tag not in ("link", "iframe", "img", "object", "base"), tag
        assert not attributes.keys() & {"src", "href", "action"}
        assert not any(name.startswith("on") for name in attributes)
        assert "style" not in attributes
    policy = next(
        attributes["content"] or ""
        for _, attributes in found.tags
        if attributes.get("http-equiv") == "Content-Security-Policy"
    )
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    for rule, element in (("style-src", "style"), ("script-src", "script module")):
        digest = hashlib.sha256(found.text[element].encode()).digest()
        assert rules[rule] == f"'sha256-{base64.b64encode(digest).decode()}'"
    assert not re.search(r"url\(|@import", found.text["style"])
    loading = r"\bfetch\(|XMLHttpRequest|EventSource|\bimport\(|^(import|export)\b"
    assert not re.search(loading, found.text["script module"], re.MULTILINE)


def test_what_is_no_number_in_a_manifest_is_reported() -> None:
    view = {"job_id": "j", "phases": [{"phase": "create", "seconds": float("nan")}]}
    with raises(InputError):
        html(page_of_job(view))


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


def test_an_unchanged_file_is_answered_with_304(client: TestClient) -> None:
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
