"""How the page shows a view: its size, its sources and its records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.web_gallery import Gallery, show_job
from tests.support.web_looks import LOOKS, dress, look_at, show
from tests.support.web_page import await_text

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.timeout(120, func_only=True)  # Chromium may have to be installed first


def test_a_view_shows_its_size_its_sources_and_its_records(place: Gallery, page: Page) -> None:
    show_job(page, place, "view", ".view-records [data-position]")
    job = place.rest("alice", "GET", f"/v1/jobs/{place.jobs['view']}")
    facts = page.locator(".part-view dl").inner_text()
    for words in ("960", "of members", "in 16 files", job["input_uri"], "12 shards"):
        assert words in facts
    records = place.rest("alice", "GET", f"/v1/results/{place.jobs['view']}/records?from=10")
    rows = page.locator(".view-records tbody tr")
    assert rows.count() == 10
    page.get_by_role("button", name="Next →").press("Enter")
    page.locator("[data-position='10']").wait_for()
    await_text(page, ".view-records", "11 to 20 of 960 records")
    assert page.evaluate("document.activeElement.textContent") == "Next →"
    first = records["records"][0]
    shown = rows.first.inner_text()
    assert first["key"] in shown
    assert first["ranges"][0]["shard"].rpartition("/")[2] in shown
    rows.first.get_by_role("link").click()
    page.locator(".record-list tbody tr").first.wait_for()


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize("look", LOOKS)
def test_records_of_a_view_are_texts_whatever_their_names(
    place: Gallery, page: Page, look: str
) -> None:
    html, long = "<script>document.title='owned'</script>", "x" * 1024
    parts = [
        {"member": f"{html}.{html}", "bytes": 2**53, "shard": f"file:///{long}", "offset": 2**53},
        *({"member": long, "bytes": 1, "shard": f"s3://{n}/a", "offset": n} for n in range(9)),
        {"member": "a\nb\u202e.txt", "bytes": 3, "base64": "YWJj"},
    ]
    images = place.rest("alice", "GET", f"/v1/jobs/{place.jobs['view']}")["input_uri"]
    encoded = {"member": "a", "bytes": 1, "shard": f"{images}/a%25%20%23.tar", "offset": 1}
    parts += [encoded, {**encoded, "shard": f"{images}/%FF.tar"}]
    rows = [
        {"position": 2**53 - 1, "key": key, "ranges": ranges, "ranges_total": 2**53}
        for key, ranges in ((html, parts), (long, parts[1:]), ("", []))
    ]
    answer = {"total": 2**53, "records": rows, "next_position": 3}
    page.route("**/v1/results/**", lambda route: route.fulfill(json=answer))
    show(dress(page, look), "#/jobs", "tr[data-job]")
    show_job(page, place, "view", ".view-records [data-position]")
    look_at(page, "job-view-hostile", look)
    assert html in page.locator(".view-records").inner_text()
    link = page.get_by_role("link", name="a% #.tar", exact=True).first.get_attribute("href")
    assert (link or "").endswith("?shard=a%25+%23.tar")
    assert page.title() != "owned"
    page.unroute("**/v1/results/**")


def test_a_view_of_no_record_says_so(place: Gallery, page: Page) -> None:
    none = {"total": 0, "records": [], "next_position": None}
    page.route("**/v1/results/**", lambda route: route.fulfill(json=none))
    show(page, "#/jobs", "tr[data-job]")
    show_job(page, place, "view", ".view-records .quiet")
    await_text(page, ".view-records", "None.")
    page.unroute("**/v1/results/**")


def test_a_view_that_cannot_be_read_says_why(place: Gallery, page: Page) -> None:
    page.route(
        "**/v1/results/**", lambda route: route.continue_(url=route.request.url + "&limit=0")
    )
    show(page, "#/jobs", "tr[data-job]")
    show_job(page, place, "view", ".part-view .problem")
    page.unroute("**/v1/results/**")
