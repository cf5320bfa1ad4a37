"""The web page in a real browser (Debian's Chromium) against a real service with real jobs: a spec
is checked while it is typed, planned, submitted and watched to its end; a job is stopped; a
schedule is made; by mouse, by keyboard, on a phone; and the report that is one file shows the same.

Screenshots are kept in ``test-output/screenshots``. Every test fails on an error in the browser's
console, and on a request to anywhere but the service.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import httpx
import numpy as np
import pytest
import yaml
from msgspec.structs import asdict

from dsort.client import DsortClient
from dsort.service.database.engine import open_database
from dsort.service.security.tokens import TokenStore
from dsort.web.job_page import html, page_of_manifest
from tests.support.axe import axe_findings
from tests.support.chromium import chromium
from tests.support.datasets import write_shards
from tests.support.engine import shard_of
from tests.support.fault_points import points_environment
from tests.support.held_jobs import held_workers, holding, let_go
from tests.support.internals import mixing_of
from tests.support.service_process import ServiceProcess, await_that, running_service
from tests.support.web_page import PHONE, WIDE, await_text, careful_context, go, shoot, signed_in

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

pytestmark = pytest.mark.timeout(120, func_only=True)  # Chromium may have to be installed first
SHARDS, RECORDS, IN_A_SHARD = 6, 40, 30
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
COLOURS = """() => [...document.querySelectorAll(".heat canvas")].map((picture) => {
  const copy = document.createElement("canvas");
  [copy.width, copy.height] = [picture.width, picture.height];
  const context = copy.getContext("2d", { willReadFrequently: true });
  context.drawImage(picture, 0, 0);
  const { data } = context.getImageData(0, 0, copy.width, copy.height);
  return Array.from({ length: data.length / 4 }, (_, i) => [...data.slice(4 * i, 4 * i + 3)]);
})"""
"""The colours of all cells of the pictures, before and after, row by row."""
SPEC = f"""\
input_bck: images
output_bck: shuffled
output_format: shuffled-%02d
output_shard_records: {IN_A_SHARD}
algorithm:
  kind: shuffle
  seed: 3
"""


@dataclass
class Place:
    """A service with two users, and a browser to look at it."""

    service: ServiceProcess
    browser: Browser
    faults: Path
    tokens: dict[str, str]

    def rest(self, method: str, path: str, **more: Any) -> Any:
        """Ask the REST interface, as alice."""
        headers = {"Authorization": f"Bearer {self.tokens['alice']}"}
        answer = httpx.request(method, self.service.url + path, headers=headers, **more)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    def submit(self, output: str, **query: str) -> str:
        """Submit the shuffle into a bucket of its own; the job's id."""
        text = SPEC.replace("shuffled", output)
        job_id: str = self.rest("POST", "/v1/jobs", content=text, params=query)["job_id"]
        return job_id

    def beginning(self, job_id: str) -> int:
        """The number of the event that a job runs."""
        with DsortClient(self.service.url, token=self.tokens["alice"]) as client:
            return next(
                event.number
                for event in client.events(job_id)
                if event.kind == "state" and event.value.state == "running"
            )

    def finished(self, job_id: str) -> dict[str, Any]:
        """What the page of a job shows, once it has finished."""

        def look() -> dict[str, Any] | None:
            job = self.rest("GET", f"/v1/jobs/{job_id}")
            assert job["state"] not in ("failed", "stopped"), job["error"]
            return dict(job) if job["state"] == "finished" else None

        await_that(look, why=f"job {job_id} does not end")
        page: dict[str, Any] = self.rest("GET", f"/v1/jobs/{job_id}/page")
        return page


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    root = tmp_path_factory.mktemp("web")
    faults = root / "faults"
    faults.mkdir()
    shards = {
        f"s-{shard}.tar": shard_of(*(f"{shard}-{record:03}" for record in range(RECORDS)))
        for shard in range(SHARDS)
    }
    write_shards(root / "images", shards)
    url = f"sqlite:///{root}/service.db"
    with open_database(url) as database:
        store = TokenStore(database)
        roles = {"alice": "submitter", "victor": "viewer", "ada": "admin"}
        tokens = {name: store.add(name, role, ["*"], ["*"]) for name, role in roles.items()}
    arguments = [
        "--webhook-allow-host",
        "hooks.invalid",
        "--root",
        str(root),
        "--state-dir",
        str(root / "state"),
        "--database",
        url,
    ]
    with (
        chromium() as browser,
        running_service(
            root, *arguments, "--workers", "1", env=points_environment(faults)
        ) as service,
    ):
        yield Place(service, browser, faults, tokens)


@pytest.fixture(scope="module")
def seen_job(place: Place) -> dict[str, Any]:
    """The page of a finished job that many tests look at; its description is hostile."""
    return place.finished(place.submit("looked-at", description=HOSTILE, label="nightly"))


@pytest.fixture
def context(place: Place) -> Iterator[BrowserContext]:
    """A browser without a token; no job stands still when the test is over."""
    with careful_context(place.browser, place.service.url) as made:
        try:
            yield made
        finally:
            let_go(place.service.offspring())


@pytest.fixture
def page(place: Place, context: BrowserContext) -> Page:
    """Alice's browser, signed in."""
    return signed_in(context, place.tokens["alice"])


def test_a_job_is_checked_planned_submitted_and_watched_to_its_end(
    place: Place, page: Page
) -> None:
    go(page, "#/submit")
    editor = page.get_by_label("Spec, JSON or YAML")
    editor.fill(SPEC.replace("kind: shuffle", "kind: shufle").replace("%02d", "%02x"))
    await_text(page, "#spec-state", "2 problems")
    wrong = page.get_by_role("list", name="problems of the spec")
    wrong.get_by_text('did you mean "shuffle"?').wait_for()
    wrong.get_by_role("button", name="Go to line 6").click()
    selected = "e => e.value.slice(e.selectionStart, e.selectionEnd)"
    assert editor.evaluate(selected) == "  kind: shufle"
    await_text(page, ".help details[open]", "alphanumeric: by record key")
    assert page.get_by_role("button", name="Submit", exact=True).is_disabled()
    shoot(page, "submit-problems")
    assert axe_findings(page) == []

    editor.fill(SPEC)
    await_text(page, "#spec-state", "Valid")
    page.get_by_label("Labels").fill("team-a, by-hand")
    page.get_by_role("button", name="Preview the plan").click()
    planned = page.locator(".preview .shards tbody tr")
    planned.first.wait_for()
    assert planned.count() == SHARDS * RECORDS // IN_A_SHARD
    assert page.locator(".preview .mixing").get_attribute("data-verdict") == "even"
    shoot(page, "submit-plan")
    assert axe_findings(page) == []

    with holding(place.faults, place.service):
        page.get_by_role("button", name="Submit", exact=True).click()
        page.wait_for_url(re.compile("#/jobs/"))
        workers = held_workers(place.service)
        await_text(page, ".steps [aria-current=step]", "create")
        await_text(page, ".job-head .chip", "running")
        shoot(page, "job-running")
    let_go(workers)
    await_text(page, ".job-head .chip", "finished")  # without a reload

    job_id = page.url.rpartition("/")[2]
    shown = place.finished(job_id)
    assert shown["job"]["labels"] == ["by-hand", "team-a"]
    assert page.locator(".verdict", has_text="uneven: p < 0.001").count() == 1
    assert shown["mixing"]["verdict"] == "even"
    names = page.locator(".shards tbody th").all_inner_texts()
    assert names == [row[0] for row in shown["shards"]["rows"]]
    for part in ("Log", "Phases", "Throughput", "About this job", "Spec"):
        page.get_by_role("heading", name=part, exact=True).wait_for()
    shoot(page, "job-finished")


def follow_a_stream_that_breaks(page: Page, job_id: str, beginning: int) -> None:
    """Show a job while its first stream of events ends early: the page asks for the rest.
    ``beginning``: the number of the event that it runs. The page hears that only once, for it
    forgets all warnings then, as those of an attempt before."""
    body = f'id: {beginning}\nevent: warning\ndata: {{"kind": "odd", "text": "so far"}}\n\n'
    page.route(
        "**/events",
        lambda route: route.fulfill(content_type="text/event-stream", body=body),
        times=1,
    )
    goes_on = {"last-event-id": str(beginning), "accept": "text/event-stream"}
    with page.expect_request(lambda request: goes_on.items() <= request.headers.items()):
        go(page, f"#/jobs/{job_id}")
    await_text(page, ".steps [aria-current=step]", "create")
    await_text(page, ".warnings", "so far")


@pytest.mark.exhaustive
def test_a_running_job_is_stopped_from_the_list(place: Place, page: Page) -> None:
    with holding(place.faults, place.service):
        job_id = place.submit("to-be-stopped", description="Not wanted any more")
        held_workers(place.service)
        follow_a_stream_that_breaks(page, job_id, place.beginning(job_id))
        go(page, "#/jobs")
        row = page.locator(f"tr[data-job='{job_id}']")
        row.get_by_role("button", name="Stop").click()
        page.get_by_label("Reason").press("Escape")
        page.locator("dialog").wait_for(state="detached")
        assert place.rest("GET", f"/v1/jobs/{job_id}")["stopping"] is False
        row.get_by_role("progressbar").wait_for()
        shoot(page, "jobs-running")
        row.get_by_role("button", name="Stop").click()
        page.get_by_label("Reason").fill("too <b>slow</b>")
        page.get_by_role("button", name="Stop the job").click()
        row.locator("[data-state=stopped]").wait_for()
    assert row.get_by_role("button").all_inner_texts() == ["Resume", "Run again", "Remove"]
    page.get_by_role("button", name="failed", exact=True).click()
    page.get_by_text("No jobs fit this filter.").wait_for()
    page.get_by_role("button", name="Show all").click()
    row.get_by_role("link", name="Not wanted any more").click()
    await_text(page, ".facts", "too <b>slow</b>")
    await_text(page, ".facts", "Algorithm")
    page.get_by_role("button", name="Remove").click()
    page.get_by_role("button", name="Remove it").click()
    page.wait_for_url(re.compile("#/jobs$"))
    row.wait_for(state="detached")


def test_a_schedule_is_made_paused_and_removed(place: Place, page: Page) -> None:
    go(page, "#/schedules")
    page.get_by_role("button", name="Add a schedule").click()
    page.get_by_label("Name").fill("nightly")
    page.get_by_label("Cron expression").fill("0 25 * * *")
    page.get_by_label("Time zone").fill("Europe/Berlin")
    spec = page.get_by_label("Spec of its jobs")
    assert yaml.safe_load(spec.input_value())["algorithm"]["kind"] == "shuffle"
    nightly = SPEC.replace("seed: 3", 'seed: "{{run_id}}"')
    spec.fill(nightly.replace("shuffled-", "{{date}}/s-"))
    page.get_by_role("button", name="Add", exact=True).click()
    page.get_by_role("button", name="Go to line 3").wait_for()
    spec.fill(nightly.replace("shuffled-%02d", '"{{date}}/s-%02d"'))
    page.get_by_role("button", name="Add", exact=True).click()
    await_text(page, ".bad-field .wrong", "hour")
    await_text(page, ".next-times", "–")
    page.get_by_label("Cron expression").fill("0 2 * * *")
    await_text(page, ".next-times .times", "02:00")  # by the schedule's clock
    page.get_by_label("Cron expression").fill("30 7 * * *")
    await_text(page, ".next-times .times", "07:30")
    page.get_by_label("Cron expression").fill("0 2 * * *")
    await_text(page, ".next-times .times", "02:00")
    shoot(page, "schedule-form")
    page.get_by_role("button", name="Add", exact=True).click()
    page.get_by_role("heading", name="nightly").wait_for()
    await_text(page, ".facts", "every day at 02:00")
    times = page.locator(".times time")
    assert times.count() == 5
    assert all(text.endswith("02:00") for text in times.all_inner_texts())
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Resume").wait_for()
    assert place.rest("GET", "/v1/schedules/nightly")["paused"] is True
    page.get_by_role("button", name="Resume").click()
    page.get_by_role("button", name="Pause").wait_for()
    shoot(page, "schedule")
    page.get_by_role("link", name="← Schedules").click()
    row = page.locator("tr[data-schedule=nightly]")
    row.wait_for()
    shoot(page, "schedules")
    row.get_by_role("button", name="Remove").click()
    page.get_by_role("button", name="Remove it").click()
    page.get_by_text("No schedules yet.").wait_for()
    assert place.rest("GET", "/v1/schedules")["schedules"] == []


def test_a_schedule_shows_that_its_last_job_failed(place: Place, page: Page) -> None:
    spec = {"input_bck": "nowhere", "output_bck": "out", "output_format": "{{run_id}}/s-%d"}
    spec["output_shard_size"] = "1MB"
    schedule = {"name": "failing", "cron": "0 2 * * *", "paused": True, "spec": spec}
    schedule |= {"timezone": "Pacific/Kiritimati", "start_at": "2026-12-01T00:00"}
    made = place.rest("POST", "/v1/schedules", json=schedule)
    assert "nowhere does not exist" in made["warnings"][0]
    run = place.rest("POST", "/v1/schedules/failing/run-now")
    go(page, "#/schedules")
    chip = page.locator("tr[data-schedule=failing] .last [data-state=failed]")
    chip.wait_for()
    assert "nowhere" in (chip.get_attribute("title") or "")
    go(page, "#/schedules/failing")
    page.locator(".runs [data-state=failed]").wait_for()
    due = datetime.fromisoformat(run["due_at"]).astimezone(ZoneInfo("Pacific/Kiritimati"))
    await_text(page, ".runs time", f"{due:%a %Y-%m-%d %H:%M}")  # by the schedule's clock
    await_text(page, ".facts", "Tue 2026-12-01 00:00")
    shoot(page, "schedule-failed")
    place.rest("DELETE", "/v1/schedules/failing")


@pytest.mark.exhaustive
def test_a_schedule_that_is_changed_on_the_page_keeps_its_hooks(place: Place, page: Page) -> None:
    spec = {"input_bck": "images", "output_bck": "out", "output_format": "{{run_id}}/s-%d"}
    schedule = {"name": "hooked", "cron": "0 2 * * *", "paused": True, "spec": spec}
    spec["output_shard_size"] = "1MB"
    hook = {"webhook": "https://hooks.invalid/secret"}
    place.rest("POST", "/v1/schedules", json={**schedule, "on_failure": hook})
    go(page, "#/schedules/hooked")
    await_text(page, ".facts", "calls https://hooks.invalid/secret")
    page.get_by_role("link", name="Change").click()
    page.get_by_label("Cron expression").fill("30 3 * * *")
    page.get_by_role("button", name="Save", exact=True).click()
    await_text(page, ".facts", "03:30")
    assert place.rest("GET", "/v1/schedules/hooked")["on_failure"] == hook
    place.rest("DELETE", "/v1/schedules/hooked")


def test_the_picture_can_be_read_without_a_mouse(page: Page, seen_job: dict[str, Any]) -> None:
    go(page, f"#/jobs/{seen_job['job']['job_id']}")
    mixing = seen_job["mixing"]
    page.get_by_role("application").nth(1).wait_for()
    before, after = page.get_by_role("application").all()
    page.locator("body").press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    after.press("ArrowDown")
    after.press("ArrowRight")
    readout = page.locator(".heat .readout").nth(1)
    cells = mixing["cells"]
    assert f"input 0 → output 1: {cells['counts'][0][1]} records, 5.0 expected" in (
        readout.inner_text()
    )
    before.press("ArrowUp")
    assert readout.inner_text() == "As the records were written."
    page.get_by_text("Counts as a table: after").press("Enter")
    table = page.get_by_role("region", name="After: counts")
    table.wait_for()
    shown = table.locator("tbody td").all_inner_texts()
    assert [int(text) for text in shown] == [count for row in cells["counts"] for count in row]


def test_what_strangers_write_is_only_text(page: Page, seen_job: dict[str, Any]) -> None:
    job_id = seen_job["job"]["job_id"]
    go(page, "#/jobs")
    page.get_by_role("link", name=HOSTILE).click()
    page.get_by_role("heading", name=HOSTILE).wait_for()
    assert page.locator("main img, main script").count() == 0
    assert page.title() == f"{HOSTILE} · dsort"
    assert job_id in page.url


@pytest.mark.sample(keep=1)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_fits_on_a_phone(
    place: Place, context: BrowserContext, seen_job: dict[str, Any], scheme: str
) -> None:
    page = signed_in(context, place.tokens["alice"])
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    job = f"#/jobs/{seen_job['job']['job_id']}"
    looks = {"jobs": ("#/jobs", "tr[data-job]"), "job": (job, ".mixing canvas")}
    looks |= {"schedules": ("#/schedules", ".empty p"), "submit": ("#/submit", ".state.ok")}
    for width, height in (WIDE, PHONE) if scheme == "dark" else (PHONE,):
        page.set_viewport_size({"width": width, "height": height})
        for name, (address, sign) in looks.items():
            go(page, address)
            page.locator(sign).first.wait_for()
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, f"{name} is {wide} wide on a screen of {width}"
            shoot(page, f"{scheme}-{width}-{name}")


def test_light_and_dark_can_be_chosen_and_stay(page: Page, seen_job: dict[str, Any]) -> None:
    go(page, f"#/jobs/{seen_job['job']['job_id']}")
    page.locator(".heat canvas").first.wait_for()
    background = "getComputedStyle(document.documentElement).backgroundColor"
    light = (page.evaluate(background), page.evaluate(COLOURS)[1][0])
    page.get_by_role("button", name="Make the page dark").click()
    dark = (page.evaluate(background), page.evaluate(COLOURS)[1][0])
    assert sum(light[1]) > 600 > 300 > sum(dark[1])  # as expected: the colour of the card
    assert light[0] != dark[0]
    page.reload()
    page.get_by_role("button", name="Make the page light").wait_for()
    assert page.evaluate(background) == dark[0]


def test_a_token_is_asked_for_and_kept_for_the_tab_only(
    place: Place, context: BrowserContext, seen_job: dict[str, Any]
) -> None:
    page = context.new_page()
    go(page, "#/jobs")
    page.get_by_label("Token").fill("dsort_no_such")
    page.get_by_role("button", name="Sign in", exact=True).last.click()
    page.get_by_text("This token is unknown").wait_for()
    page.get_by_label("Token").fill(place.tokens["victor"])
    page.get_by_label("Token").press("Enter")
    page.locator("tr[data-job]").first.wait_for()
    await_text(page, "#whoami", "victor (viewer)")
    assert (
        page.locator("main [data-action=stop], main [data-action=delete]").count() == 0
    )  # a viewer may change nothing
    assert page.get_by_role("link", name="Submit a job").count() == 0
    assert place.tokens["victor"] not in page.url
    assert page.evaluate("JSON.stringify(localStorage)") == "{}"
    assert context.cookies() == []
    page.get_by_role("button", name="Sign out").click()
    page.get_by_label("Token").press("Escape")
    await_text(page, ".problem", "no token")
    assert page.evaluate("sessionStorage.getItem('dsort-token')") is None


def test_the_report_is_one_file_that_shows_the_same(
    context: BrowserContext, seen_job: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "report.html"
    file.write_text(html(seen_job), encoding="utf-8")
    page = context.new_page()
    page.goto(file.as_uri())
    page.get_by_role("heading", name=HOSTILE).wait_for()
    assert page.locator(".verdict", has_text="uneven: p < 0.001").count() == 1
    names = page.locator(".shards tbody th").all_inner_texts()
    assert names == [row[0] for row in seen_job["shards"]["rows"]]
    shoot(page, "report")


def test_an_object_in_place_of_a_text_is_shown_as_text(
    context: BrowserContext, seen_job: dict[str, Any], tmp_path: Path
) -> None:
    owned = {"class": "owned", "data": {"owned": "yes"}, "onclick": "document.title='owned'"}
    warning = {"kind": "odd", "text": owned, "samples": [owned]}
    job = {**seen_job["job"], "owner": owned, "input_uri": owned}
    file = tmp_path / "owned.html"
    file.write_text(html({**seen_job, "job": job, "warnings": [warning]}), encoding="utf-8")
    page = context.new_page()
    page.goto(file.as_uri())
    await_text(page, ".warnings p", '{"class":"owned"')
    await_text(page, ".facts dd", '{"class":"owned"')
    assert page.locator(".owned, [data-owned]").count() == 0


def with_counts(place: Place, seen_job: dict[str, Any], counts: Any, shards: int) -> str:
    """The report of the job, had it mixed records of so many input and output shards so."""
    manifest = place.rest("GET", f"/v1/jobs/{seen_job['job']['job_id']}/manifest")
    shape = {"input_shards": shards, "output_shards": shards}
    mixing = mixing_of({**shape, "counts": counts})
    assert mixing is not None
    return html(page_of_manifest({**manifest, "mixing": asdict(mixing)}))


@pytest.mark.exhaustive
def test_shards_of_a_large_job_are_reported_by_the_bin(
    place: Place, context: BrowserContext, seen_job: dict[str, Any], tmp_path: Path
) -> None:
    counts = [[10] * 37 + [5] for _ in range(64)]
    file = tmp_path / "large.html"
    file.write_text(with_counts(place, seen_job, counts, 150), encoding="utf-8")
    page = context.new_page()
    page.goto(file.as_uri())
    after = page.get_by_role("application").nth(1)
    for key in ("ArrowDown", "ArrowLeft", *["ArrowRight"] * 37):
        after.press(key)
    readout = page.locator(".heat .readout").nth(1)
    assert "input 0–2 → output 148–149: 5 records" in readout.inner_text()
    page.get_by_text("Counts as a table: after").press("Enter")
    heads = page.get_by_role("region", name="After: counts").locator("thead th.num")
    heads.first.wait_for()
    assert heads.all_inner_texts()[:2] == ["0–3", "4–7"]
    assert page.evaluate("document.documentElement.scrollWidth") <= WIDE[0]
    shoot(page, "report-large")


def test_a_perfect_shuffle_has_a_calm_picture_and_a_poor_one_has_not(
    place: Place, context: BrowserContext, seen_job: dict[str, Any], tmp_path: Path
) -> None:
    by_chance = np.random.default_rng(7).poisson(12, (64, 64))
    in_stripes = by_chance + np.where(np.arange(64) % 8 == 0, 30, 0) * (np.arange(64)[:, None] < 32)
    strongest = []
    for name, counts in (("chance", by_chance), ("stripes", in_stripes)):
        file = tmp_path / f"{name}.html"
        file.write_text(with_counts(place, seen_job, counts, 64), encoding="utf-8")
        page = context.new_page()
        page.goto(file.as_uri())
        page.locator(".heat canvas").first.wait_for()
        shoot(page, f"report-{name}")
        after = np.array(page.evaluate(COLOURS)[1])
        apart = np.abs(after - np.median(after, axis=0)).max(axis=1)
        strongest.append([int(np.quantile(apart, share)) for share in (0.5, 0.99, 0.9)])
    (half, nearly_all, _), (_, _, of_stripes) = strongest
    assert half <= 2  # of 255: too little to see
    assert nearly_all <= 25
    assert of_stripes > 60


@pytest.mark.exhaustive
def test_a_route_can_be_tried_on_the_page_of_the_api(place: Place, context: BrowserContext) -> None:
    page = context.new_page()
    page.goto("/docs")
    page.locator(".auth-wrapper .authorize").first.click()
    page.locator(".modal-ux input").first.fill(place.tokens["alice"])
    page.locator(".modal-ux .auth-btn-wrapper .authorize").first.click()
    page.locator(".modal-ux .btn-done").first.click()
    route = page.locator(".opblock-get").filter(
        has=page.locator('.opblock-summary-path[data-path="/v1/jobs"]')
    )
    route.locator(".opblock-summary-control").first.click()
    route.locator(".try-out__btn").click()
    route.locator(".execute").click()
    answer = route.locator(".live-responses-table tr.response .response-col_status")
    answer.filter(has_text="200").first.wait_for()
    shoot(page, "api")
