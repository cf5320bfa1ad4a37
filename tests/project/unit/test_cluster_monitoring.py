"""Alerts and the dashboard ask for metrics that the service has, by labels that those have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dsort.service.api.metrics import Metrics
from dsort.service.database.engine import open_database
from dsort.service.jobs.rows import ENDED, STATES
from dsort.service.jobs.store import JobStore
from tests.support.cluster_files import read_text, read_yaml, walk
from tests.support.commands import ROOT

OPERATIONS = ROOT / "docs" / "operations" / "deploy.md"
OF_PROMETHEUS = {"instance", "exported_job", "le"}
"""Labels that a scrape adds: it calls a metric's own ``job`` ``exported_job``."""


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The name of each sample, with the name of its family."""
    directory: Path = tmp_path_factory.mktemp("metrics")
    with open_database(f"sqlite:///{directory}/service.db") as database:
        metrics = Metrics(JobStore(database))
        metrics.on_request("/healthz", "GET", 200, 0.1)
        metrics.on_event("job-1", "warning", {"kind": "odd"})
        text = metrics.text().decode()
    found: dict[str, str] = {}
    for family in text_string_to_metric_families(text):
        if family.name.endswith("_created"):  # when its counter began
            continue
        found |= {sample.name: family.name for sample in family.samples}
        if family.type == "gauge":
            found[family.name] = family.name  # of running jobs, and there is none
    return found


def dashboard() -> Any:
    return json.loads(read_text("monitoring/grafana-dashboard.json"))


def alerts() -> list[dict[str, Any]]:
    (group,) = read_yaml("monitoring/prometheus-alerts.yaml")["groups"]
    return list(group["rules"])


def queries() -> Iterator[tuple[str, str]]:
    for alert in alerts():
        yield alert["alert"], alert["expr"]
    for panel in dashboard()["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


QUERIES = list(queries())


@pytest.mark.parametrize(("place", "query"), QUERIES, ids=[place for place, _ in QUERIES])
def test_a_query_asks_for_metrics_that_there_are(
    known: dict[str, str], place: str, query: str
) -> None:
    names = set(re.findall(r"\bdsort_\w+", query))

    assert names, place
    assert names <= known.keys(), place
    assert query.count("(") == query.count(")"), place
    assert query.count("{") == query.count("}"), place


@pytest.mark.parametrize(("place", "query"), QUERIES, ids=[place for place, _ in QUERIES])
def test_a_query_selects_by_labels_and_states_that_there_are(place: str, query: str) -> None:
    source = (ROOT / "dsort" / "service" / "api" / "metrics.py").read_text("utf-8")
    labels = set(re.findall(r'(?:\[|, )"([a-z]+)"(?=[],])', source)) | OF_PROMETHEUS
    asked = set(re.findall(r"[{,](\w+)=", query))
    for group in re.findall(r"by \(([\w, ]+)\)", query):
        asked |= set(group.split(", "))

    assert asked <= labels, place
    for state in re.findall(r'state="(\w+)"', query):
        assert state in (ENDED if "jobs_ended" in query else STATES), place


def test_the_dashboard_shows_or_an_alert_watches_every_kind_of_metric(
    known: dict[str, str],
) -> None:
    asked = {known[name] for _, query in QUERIES for name in re.findall(r"\bdsort_\w+", query)}
    of_one_job = {name for name in known.values() if name.startswith("dsort_job_phase")}

    assert set(known.values()) - asked - of_one_job == {
        "dsort_job_attempts",
        "dsort_job_warning_count",
    }


def test_panels_of_the_dashboard_lie_beside_each_other() -> None:
    places = [panel["gridPos"] for panel in dashboard()["panels"]]
    cells = [
        (x, y)
        for place in places
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]

    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    ids = [each["id"] for each in dashboard()["panels"]]
    assert len(ids) == len(set(ids))


def test_the_dashboard_asks_the_source_that_its_reader_chooses() -> None:
    sources = [each["datasource"] for each in walk(dashboard()["panels"]) if "datasource" in each]

    assert sources
    assert all(each == {"type": "prometheus", "uid": "${source}"} for each in sources)
    assert {each["name"] for each in dashboard()["templating"]["list"]} == {"source", "instance"}


def test_each_alert_says_what_is_wrong_and_the_page_what_to_do() -> None:
    page = OPERATIONS.read_text("utf-8")

    assert len(alerts()) >= 6
    for alert in alerts():
        assert alert["labels"]["severity"] in ("critical", "warning")
        assert alert["annotations"]["summary"]
        assert f"`{alert['alert']}`" in page
