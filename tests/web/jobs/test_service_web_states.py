"""How the page shows every state that jobs, lists and the service itself can be in: in light, in
dark and on a phone. Screenshots are kept in ``test-output/screenshots/states``, all of them by
``make test-all``; ``make test`` takes a sample.

In each, axe-core finds nothing, nothing is cut off on a phone, and the browser has nothing to
complain about. What the page says of each state has tests of its own below."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dsort.web.job_page import html
from tests.support.service_process import await_that
from tests.support.web_data import HOSTILE_KEY
from tests.support.web_gallery import NIGHTS_S, Gallery, show_job
from tests.support.web_looks import LOOKS, dress, look_at, show
from tests.support.web_page import WIDE, await_text, careful_context, cut_off, go, signed_in

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.timeout(120, func_only=True)  # Chromium may have to be installed first
PHASES = ("resolve", "extract", "plan", "create", "commit")
JOB_STATES = {
    "finished-shuffle": ("shuffled", ".mixing canvas"),
    "finished-sort": ("sorted", ".mixing canvas"),
    "finished-none": ("none", ".shards"),
    "finished-warnings": ("warned", ".warnings li"),
    "finished-view": ("view", ".view-records [data-position]"),
    "failed": ("failed", ".problem"),
    "aborted": ("stopped", "[data-state=stopped]"),
    "queued": ("queued", "[data-state=queued]"),
    "stopping": ("stopping", "[data-state=stopping]"),
    "plan": ("plan", ".mixing canvas"),
    **{f"running-{phase}": (f"running-{phase}", "[aria-current=step]") for phase in PHASES},
}
"""By the name of the screenshot: the job, and what is there once it is shown."""
WALKED = {
    "#/submit": ".state.ok",
    "#/schedules/nightly": "main dl",
    "#/data/photos?shard=train-0.tar&record=1": ".record canvas",
}
"""Pages that are walked through by keyboard, and what is there once they are shown."""
PAGES = {
    "jobs": ("#/jobs", "tr[data-job]"),
    "jobs-sorted": ("#/jobs?sort=-time", "th[aria-sort=descending]"),
    "jobs-none-fit": ("#/jobs?owner=other", ".empty p button"),
    "schedules": ("#/schedules", "tr[data-schedule]"),
    "schedule": ("#/schedules/nightly", ".times"),
    "schedule-form": ("#/schedules/nightly?edit=1", "form"),
    "submit": ("#/submit", ".state.ok"),
    "data": ("#/data", ".buckets a"),
    "data-bucket": ("#/data/photos", "[data-shard]"),
    "data-record": ("#/data/photos?shard=train-0.tar&record=1", ".record canvas"),
    "data-hostile": ("#/data/photos?shard=odd/hostile.tar&record=0", ".record"),
    "no-such-job": ("#/jobs/no-such-job", ".problem"),
    "no-such-page": ("#/nowhere", "h1"),
}


PAGE_TERMS = "async (told) => (await import('/web/terms.js')).pageTerms(told)"


@pytest.mark.exhaustive
@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("name", JOB_STATES)
def test_a_job_can_be_looked_at_in_every_state(
    place: Gallery, page: Page, name: str, look: str
) -> None:
    job, sign = JOB_STATES[name]
    show_job(dress(page, look), place, job, sign)
    look_at(page, f"job-{name}", look)


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("name", PAGES)
def test_every_other_page_can_be_looked_at(page: Page, name: str, look: str) -> None:
    show(dress(page, look), *PAGES[name])
    look_at(page, name, look)


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize("look", LOOKS)
def test_who_has_no_token_signs_in_and_finds_the_service_empty(
    place: Gallery, browser: Browser, look: str
) -> None:
    with careful_context(browser, place.url) as made:
        page = go(dress(made.new_page(), look), "#/jobs")
        field = page.get_by_label("Token")
        field.wait_for()
        look_at(page, "sign-in", look)
        field.fill("dsort_no_such")
        field.press("Enter")
        page.get_by_text("This token is unknown").wait_for()
        look_at(page, "sign-in-wrong-token", look)
        page.get_by_label("Token").fill(place.tokens["stranger"])
        page.get_by_label("Token").press("Enter")
        page.get_by_text("No jobs yet.").wait_for()
        look_at(page, "jobs-empty", look)
        show(page, "#/schedules", ".empty p").get_by_text("No schedules yet.").wait_for()
        look_at(page, "schedules-empty", look)


@pytest.mark.exhaustive
@pytest.mark.parametrize("look", LOOKS)
def test_a_service_that_does_not_answer_is_named_and_waited_for(
    place: Gallery, browser: Browser, look: str
) -> None:
    with careful_context(browser, place.url) as made:
        page = go(dress(signed_in(made, place.tokens["alice"]), look), "#/jobs")
        page.locator("tr[data-job]").first.wait_for()
        made.set_offline(True)
        await_text(page, "#connection", "No answer, trying again")
        look_at(page, "offline-jobs", look)
        show_job(page, place, "shuffled", ".problem")
        look_at(page, "offline-job", look)
        made.set_offline(False)
        page.locator(".mixing canvas").first.wait_for()  # without a reload
        page.locator("#connection").wait_for(state="hidden")


def top_of(page: Page, selector: str) -> float:
    """How far down an element begins, in pixels."""
    top: float = page.locator(selector).evaluate("each => each.getBoundingClientRect().top")
    return top


@pytest.mark.exhaustive
@pytest.mark.parametrize("look", LOOKS)
def test_the_report_that_is_one_file_can_be_looked_at(
    place: Gallery, browser: Browser, look: str, tmp_path: Path
) -> None:
    job = place.rest("alice", "GET", f"/v1/jobs/{place.jobs['warned']}/page")
    file = tmp_path / "report.html"
    file.write_text(html(job), encoding="utf-8")
    with careful_context(browser, place.url) as made:
        page = dress(made.new_page(), look)
        page.goto(file.as_uri())
        page.locator(".mixing canvas").first.wait_for()
        look_at(page, "report", look)
        page.locator(".tiles a", has_text="even").click()
        assert page.url.endswith("#part-mixing")


# --- what is said


def test_the_strip_of_figures_has_the_verdict_of_a_shuffle(place: Gallery, page: Page) -> None:
    tiles = show_job(page, place, "shuffled", ".mixing canvas").locator(".tiles").inner_text()
    assert re.search(r"Mixing\n✓\s*even\np = 0\.\d{3}\n", tiles)
    tiles = show_job(page, place, "sorted").locator(".tiles").inner_text()
    assert "Mixing" not in tiles
    assert "Order\nby record key" in tiles
    assert page.get_by_role("heading", name="Where records went").count() == 1
    assert page.get_by_text("Not evenly mixed").count() == 0  # the spec did not ask for that


def test_a_job_that_keeps_the_order_has_no_picture_of_it(place: Gallery, page: Page) -> None:
    show_job(page, place, "none", ".shards")
    assert page.locator(".place-mixing").is_hidden()
    assert page.locator("canvas").count() == 0
    assert "Order\nas it came in" in page.locator(".tiles").inner_text()


def test_phases_count_the_one_that_runs(place: Gallery, page: Page) -> None:
    show_job(page, place, "running-create", ".phases tbody tr")
    rows = [row.split("\t") for row in page.locator(".phases tbody tr").all_inner_texts()]
    assert [row[0].split()[0] for row in rows] == ["resolve", "extract", "plan", "create"]
    assert "running" in rows[-1][0]
    shares = [int(row[2].removesuffix(" %")) for row in rows]
    assert sum(shares) in range(98, 103)
    assert shares[-1] == max(shares)  # of 16 s for extract and 19 s so far
    assert rows[-1][3] == "32"
    assert page.locator(".stack span").count() == 4


def test_phases_count_the_one_in_which_a_job_was_stopped(place: Gallery, page: Page) -> None:
    show_job(page, place, "stopped", ".phases tbody tr")
    rows = [row.split("\t") for row in page.locator(".phases tbody tr").all_inner_texts()]
    assert [row[0].split()[0] for row in rows] == ["resolve", "extract"]
    assert "ended here" in rows[-1][0]
    assert rows[-1][1] == "9.6 s"


def test_a_spike_does_not_set_the_axis_of_throughput(place: Gallery, page: Page) -> None:
    show_job(page, place, "running-create", ".chart svg")
    await_text(page, ".chart text:not(.spike)", "300 MiB/s")  # its axis
    page.locator(".chart .spike", has_text=re.compile(r"^↑ 2\.[89] GiB/s$")).wait_for()
    assert page.locator(".chart text:not(.spike)", has_text="GiB/s").count() == 0
    await_text(page, ".chart .readout", "Up to 2.")
    page.get_by_text("Throughput as a table").press("Enter")
    cells = page.get_by_role("region", name="Throughput").locator("tbody td")
    cells.filter(has_text=re.compile(r"2\.[89] GiB/s")).first.wait_for()


def test_sizes_are_a_histogram_unless_all_are_the_same(place: Gallery, page: Page) -> None:
    show_job(page, place, "shuffled", ".histogram")
    sizes, records = page.locator(".spread").all()
    shown = place.rest("alice", "GET", f"/v1/jobs/{place.jobs['shuffled']}/page")["shards"]
    assert sizes.locator("rect").count() == len(shown["sizes"]["counts"])
    assert sizes.locator("rect title").all_text_contents() == [
        f"{count} shard{'' if count == 1 else 's'}" for count in shown["sizes"]["counts"]
    ]
    assert "median" in sizes.inner_text()
    sizes.get_by_text("Size of shards as a table").press("Enter")
    sizes.locator("tbody td").first.wait_for()  # the table is made once it is opened
    counts = sizes.locator("tbody td").all_inner_texts()
    assert counts == [str(count) for count in shown["sizes"]["counts"]]
    assert records.locator("svg").count() == 0
    assert records.inner_text().endswith("all 16 have 60")


def test_the_log_is_near_the_top_and_open_where_a_job_failed(place: Gallery, page: Page) -> None:
    show_job(page, place, "failed", ".part-log")
    await_text(page, ".part-log pre", "output names are taken")
    assert top_of(page, ".part-log") < WIDE[1] / 2
    show_job(page, place, "shuffled", ".mixing canvas")
    assert top_of(page, ".part-log") < top_of(page, ".mixing")
    page.locator(".part-log summary").press("Enter")
    await_text(page, ".part-log pre", "state running, attempt 1")
    page.get_by_label("Only lines of the log").fill("FINISHED")
    await_text(page, ".part-log [role=status]", "1 line")
    assert page.locator(".part-log pre").inner_text().count("\n") <= 1


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ("or set overwrite: true (--overwrite)", "or set overwrite: true"),
        ("use another name, or --overwrite", "use another name, or overwrite: true in the spec"),
        ("if it died: `dsort resume a-1`", "if it died: Resume, on the page of job a-1,"),
        ("`dsort show a-1` shows how it ended", "the page of job a-1 shows how it ended"),
        ("`dsort show` (GET /v1/jobs) lists those", "the list of jobs lists those"),
        (
            "give it more with --max-memory",
            "give it more with --max-memory (an option of `dsort serve`: its operator sets it)",
        ),
        (
            "its operator can allow it: dsort serve --x",
            "its operator can allow it: dsort serve --x",
        ),
        ("<b>3 -- 4</b>", "<b>3 -- 4</b>"),
    ],
)
def test_errors_are_shown_in_terms_of_the_page(page: Page, told: str, shown: str) -> None:
    assert page.evaluate(PAGE_TERMS, told) == shown


def test_names_that_are_taken_are_shown_in_terms_of_the_spec(place: Gallery, page: Page) -> None:
    show_job(page, place, "failed", ".problem")
    assert page.locator(".problem .hint").inner_text().endswith("or set overwrite: true")


def test_a_part_of_a_page_has_an_address(place: Gallery, page: Page) -> None:
    show(page, f"#/jobs?text={place.jobs['warned']}", ".state a")
    page.get_by_role("link", name="2 warnings").click()
    page.locator(".warnings li").first.wait_for()
    assert page.url.endswith("?part=warnings")
    page.locator(".tiles a", has_text="even").click()
    page.locator(".mixing canvas").first.wait_for()
    await_that(lambda: 0 <= top_of(page, ".place-mixing") < WIDE[1] / 2 or None, why="not there")


# --- data


def test_records_are_found_shown_and_drawn_at_random(place: Gallery, page: Page) -> None:
    show(page, "#/data", ".buckets a").get_by_role("link", name="photos", exact=True).press("Enter")
    page.locator("[data-shard]").first.wait_for()
    page.get_by_role("searchbox").fill("train-1")
    await_text(page, ".filters [role=status]", "1 shard")
    page.get_by_role("link", name="train-1.tar").press("Enter")
    page.locator("[data-record='49']").wait_for()
    page.get_by_role("button", name="Next →").click()
    page.locator("[data-record='69']").wait_for()
    page.get_by_role("link", name="10069").press("Enter")
    page.get_by_role("img", name="10069.png").wait_for()
    assert "label: 4" in page.locator(".record .kind-json").inner_text()
    page.get_by_role("button", name="Enlarge 10069.png").press("Enter")
    page.locator("dialog canvas").wait_for()
    page.keyboard.press("Escape")
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save 10069.wav").press("Enter")
    assert saved.value.suggested_filename == "10069.wav"
    page.get_by_role("button", name="Ten random records").press("Enter")
    page.get_by_role("heading", name="10 random records").wait_for()
    samples = page.locator(".drawn .sample")
    assert samples.count() == 10
    samples.locator("canvas").nth(9).wait_for()
    assert all("caption: Picture" in text for text in samples.all_inner_texts())
    box = page.locator(".drawn").bounding_box()
    assert box is not None
    assert box["height"] < WIDE[1]  # all ten at once
    samples.first.press("Enter")
    await_text(page, ".record h2", "1")


def test_buckets_in_use_are_listed_with_their_last_job_and_schedules(
    place: Gallery, page: Page
) -> None:
    rows = show(page, "#/data", ".in-use tbody tr").locator(".in-use tbody tr")
    assert rows.count() == 10
    page.get_by_role("button", name="Show all").click()
    images, written = rows.filter(has_text="/images"), rows.filter(has_text="/warned")
    assert images.locator(".label").all_inner_texts() == ["read"]
    assert images.get_by_role("link", name="nightly").count() == 1
    assert written.locator(".label").all_inner_texts() == ["written"]
    written.get_by_role("link", name="Nightly shuffle").press("Enter")
    page.locator(".job-head .chip").wait_for()
    assert page.url.endswith(place.jobs["warned"])
    show(page, "#/data", ".in-use tbody tr")
    images.get_by_role("link", name="images").press("Enter")
    page.locator("[data-shard='s-00.tar']").wait_for()


def test_what_a_shard_holds_is_never_a_page(place: Gallery, page: Page) -> None:
    show(page, "#/data/photos?shard=odd/hostile.tar&record=0", ".record")
    assert page.locator(".record h2").inner_text() == HOSTILE_KEY
    texts = page.locator(".record .member").all_inner_texts()
    assert "<script>document.title='owned'</script>" in texts[0]
    assert all("<svg" in text for text in texts[1:])
    assert page.locator("main img, main svg, main iframe").count() == 0
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save").first.click()
    assert saved.value.suggested_filename.endswith(".html")
    for words in ("Bytes: 89 50", "The browser cannot decode the picture."):
        page.get_by_role("button", name="Next →").first.click()
        await_text(page, ".record", words)
    assert page.title() == "Data · dsort"


@pytest.mark.exhaustive
@pytest.mark.parametrize("look", LOOKS)
def test_samples_can_be_looked_at(page: Page, look: str) -> None:
    show(dress(page, look), "#/data/photos", "[data-shard]")
    page.get_by_role("button", name="Ten").click()
    page.locator(".sample canvas").first.wait_for()
    look_at(page, "data-samples", look)


# --- a schedule


def test_a_schedule_shows_how_long_its_runs_took(page: Page) -> None:
    show(page, "#/schedules/nightly", ".trend rect")
    assert page.locator(".trend rect").count() == len(NIGHTS_S)
    assert page.locator(".trend .run-failed").count() == 1
    await_text(page, ".trend + figcaption", "20 s to 12 min 40 s, median 11 min 30 s")
    took = page.locator(".runs tbody td:nth-child(4)").all_inner_texts()
    assert took[:3] == ["–", "12 min 40 s", "11 min 30 s"]  # the newest is in the queue


def test_the_name_of_a_schedule_is_no_state(page: Page) -> None:
    name = show(page, "#/schedules", "tr[data-schedule]").locator(".schedule-name")
    assert name.locator(".chip").count() == 0
    assert page.locator("tr[data-schedule] .schedule-on").inner_text() == "●\non"


def test_a_button_is_red_only_where_a_reader_confirms(place: Gallery, page: Page) -> None:
    show(page, "#/jobs", "tr[data-job]")
    assert page.locator("main .danger").count() == 0
    show_job(page, place, "shuffled", ".actions [data-action=delete]")
    assert page.locator("main .danger").count() == 0
    first = page.locator(".actions").get_by_role("link").first
    assert (first.inner_text(), first.get_attribute("class")) == (
        "Look at the data",
        "button primary",
    )
    page.get_by_role("button", name="Remove").click()
    assert page.locator("dialog .danger").inner_text() == "Remove it"
    page.keyboard.press("Escape")


# --- for admins


@pytest.fixture(scope="module")
def ada(place: Gallery, browser: Browser) -> Iterator[Page]:
    with careful_context(browser, place.url) as made:
        yield go(signed_in(made, place.tokens["ada"]), "#/jobs")


@pytest.mark.exhaustive
@pytest.mark.parametrize("look", LOOKS)
def test_tokens_can_be_looked_at(ada: Page, look: str) -> None:
    show(dress(ada, look), "#/tokens", "[data-token]")
    look_at(ada, "tokens", look)


def test_an_admin_makes_and_removes_tokens(place: Gallery, ada: Page) -> None:
    page = show(dress(ada, "light"), "#/tokens", "[data-token=alice]")
    page.get_by_label("Name").fill("<b>eve</b>")
    page.get_by_role("button", name="Add", exact=True).click()
    page.locator(".note-error").get_by_role("button", name="close").click()
    page.get_by_label("Name").fill("eve")
    page.get_by_label("Buckets that it may read").fill("s3://data/*, /data/i*")
    page.get_by_role("button", name="Add", exact=True).press("Enter")
    secret = page.locator(".secret").inner_text()
    row = page.locator("[data-token=eve]")
    row.wait_for()
    assert place.service.tokens.verify(secret) is not None
    assert row.locator("td").nth(1).inner_text().split() == ["s3://data/*", "file:///data/i*"]
    row.get_by_role("button", name="Remove").press("Enter")
    page.get_by_role("button", name="Remove it").click()
    row.wait_for(state="detached")
    newest = place.rest("ada", "GET", "/v1/audit")["entries"][:2]
    assert [each["action"] for each in newest] == ["token.remove", "token.add"]


def test_the_page_of_tokens_is_for_admins(page: Page) -> None:
    assert page.get_by_role("link", name="Tokens").is_hidden()
    show(page, "#/tokens", ".problem")
    await_text(page, ".problem", "the request needs an admin")


# --- the list


def column(page: Page, name: str) -> list[str]:
    return page.locator(f"tbody .{name}").all_inner_texts()


def test_the_list_shows_datasets_sizes_and_times(place: Gallery, page: Page) -> None:
    show(page, "#/jobs", "tr[data-job]")
    finished = page.locator(f"tr[data-job='{place.jobs['shuffled']}']")
    assert finished.locator(".datasets").inner_text() == "images → shuffled"
    title = finished.locator(".datasets").get_attribute("title") or ""
    assert title.startswith("file:///")
    assert finished.locator(".size").inner_text() == "2.2 MiB\n960 records"
    assert re.fullmatch(r"\d+ ms|\d\.\d s", finished.locator(".time").inner_text())
    runs = page.locator(f"tr[data-job='{place.jobs['running-create']}']")
    assert runs.locator(".size").inner_text().startswith("8 GiB")
    assert "create · 32 of 64 shards" in runs.locator(".how-far").inner_text()
    warned = page.locator(f"tr[data-job='{place.jobs['warned']}']")
    assert "2 warnings" in warned.locator(".state").inner_text()


def test_the_list_is_sorted_by_its_columns(place: Gallery, page: Page) -> None:
    show(page, "#/jobs", "tr[data-job]")
    newest_first = column(page, "what")
    size = page.locator("thead button", has_text="Size")
    size.press("Enter")
    assert page.url.endswith("#/jobs?sort=-size")
    assert page.locator("th[aria-sort=descending]").inner_text() == "Size"
    sizes = [text.split("\n")[0] for text in column(page, "size")]
    assert sizes == sorted(sizes, key=["8 GiB", "2.2 MiB", "98.5 KiB", "–"].index)
    size.click()
    assert page.locator("th[aria-sort=ascending]").inner_text() == "Size"
    size.click()
    assert column(page, "what") == newest_first
    page.locator("thead button", has_text="Job").click()
    names = [text.split("\n")[0] for text in column(page, "what")]
    assert names.index("Copy, in the order of the input") < names.index("Shuffle images")


def test_the_list_uses_the_width_and_has_dense_rows(place: Gallery, page: Page) -> None:
    show(page, "#/jobs", "tr[data-job]")
    page.set_viewport_size({"width": 1600, "height": 900})
    table = page.locator("table.jobs").bounding_box()
    row = page.locator(f"tr[data-job='{place.jobs['shuffled']}']").bounding_box()
    page.set_viewport_size({"width": WIDE[0], "height": WIDE[1]})
    assert table is not None
    assert row is not None
    assert table["width"] > 1500
    assert row["height"] <= 52  # two lines


@pytest.mark.sample(keep=2)
@pytest.mark.parametrize("width", [360, 768, 1180, 1190])
def test_the_list_can_be_read_at_any_width(place: Gallery, page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    show(page, "#/jobs", "tr[data-job]")
    heights = page.locator("tr[data-job]").evaluate_all("all => all.map((e) => e.offsetHeight)")
    assert max(heights) < 200, "its texts are squeezed"
    assert cut_off(page) == []


# --- who has no mouse, and who means harm

REACHABLE = """() => [...document.querySelectorAll(
  "a[href], button:enabled, input:enabled, select, textarea, summary, [tabindex='0']"
)].filter((each) => each.checkVisibility() && !each.closest("details:not([open]) > :not(summary)"))
  .length"""
WALK = """() => {
  const here = document.activeElement;
  window.walked = window.walked || new Set();
  if (here && here !== document.body) window.walked.add(here);
  return [window.walked.size, here === document.body];
}"""


@pytest.mark.sample(keep=2)
@pytest.mark.parametrize("address", ["#/jobs", "job", *WALKED])
def test_the_keyboard_reaches_everything(place: Gallery, page: Page, address: str) -> None:
    if address == "job":
        show_job(page, place, "shuffled", ".mixing canvas")
    else:
        show(page, address, WALKED.get(address, "main table"))
    page.evaluate("window.walked = new Set(); document.activeElement.blur()")
    walked, wanted = 0, page.evaluate(REACHABLE)
    for _ in range(2 * wanted + 3):  # twice: a row that is drawn anew takes the focus with it
        page.keyboard.press("Tab")
        if (walked := page.evaluate(WALK)[0]) >= wanted:
            break
    assert walked >= min(wanted, page.evaluate(REACHABLE))
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"


def test_the_page_runs_no_script_but_its_own_files(place: Gallery, browser: Browser) -> None:
    page = browser.new_page()  # that may complain
    page.goto(place.url)
    tried = """() => {
      const script = document.createElement("script");
      script.textContent = "window.ran = true";
      document.head.append(script);
      return "ran" in window;
    }"""
    assert page.evaluate(tried) is False
    page.close()
