"""What ``cluster/`` holds has the fields and types that Kubernetes, Compose, Prometheus and Grafana
publish; alerts and the dashboard ask for metrics that the service has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import promql_parser
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dsort.service.api.metrics import Metrics
from dsort.service.database.engine import open_database
from dsort.service.jobs.states import ENDED, STATES
from dsort.service.jobs.store import JobStore
from tests.support.cluster_files import manifests, read_documents, read_text, read_yaml, walk
from tests.support.commands import ROOT
from tests.support.published_models import (
    check_compose,
    check_dashboard,
    check_kubernetes,
    is_of_kubernetes,
)

RENDERED: list[dict[str, Any]] = [
    *read_documents(read_text("helm/rendered.yaml")),
    *(document for _, document in manifests()),
]
DURATION = re.compile(r"([0-9]+(ms|[smhdwy]))+")


def test_objects_are_those_of_kubernetes() -> None:
    judged = [each for each in RENDERED if is_of_kubernetes(each)]
    for each in judged:
        check_kubernetes(each)

    assert {"StatefulSet", "Service", "Ingress", "Job", "NetworkPolicy"} <= {
        each["kind"] for each in judged
    }


def test_pods_of_ray_clusters_are_those_of_kubernetes() -> None:
    templates = [
        part["template"]
        for document in RENDERED
        if not is_of_kubernetes(document)
        for part in walk(document)
        if "containers" in part.get("template", {}).get("spec", {})
    ]
    for template in templates:
        check_kubernetes(template, "PodTemplateSpec")

    assert len(templates) >= 4


def test_compose_files_are_of_the_specification() -> None:
    compose = read_yaml("compose/service.yaml")
    check_compose(compose)
    check_compose(read_yaml("compose/ray.yaml"))

    compose["services"]["dsort"]["stop_grace"] = "30s"
    with pytest.raises(jsonschema.ValidationError, match="stop_grace"):
        check_compose(compose)


def test_what_was_rendered_came_of_values_that_the_chart_takes() -> None:
    schema = json.loads(read_text("helm/dsort/values.schema.json"))
    values, example = read_yaml("helm/dsort/values.yaml"), read_yaml("helm/example-values.yaml")

    def merged(one: Any, other: Any) -> Any:
        if not (isinstance(one, dict) and isinstance(other, dict)):
            return other
        return {**one, **{name: merged(one.get(name), each) for name, each in other.items()}}

    jsonschema.Draft7Validator(schema).validate(merged(values, example))


def test_alerts_are_rules_that_prometheus_would_load() -> None:
    rules = read_yaml("monitoring/prometheus-alerts.yaml")

    assert rules.keys() == {"groups"}
    for group in rules["groups"]:
        assert group.keys() <= {"name", "interval", "rules"}
        for rule in group["rules"]:
            assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}, rule["alert"]
            assert DURATION.fullmatch(rule.get("for", "0s")), rule["alert"]
            promql_parser.parse(rule["expr"])
            texts = [*rule["labels"].values(), *rule["annotations"].values()]
            assert all(isinstance(text, str) for text in texts)
            assert all(text.count("{{") == text.count("}}") for text in texts)


def test_a_dashboard_has_the_fields_of_grafana_and_asks_in_promql() -> None:
    dashboard = json.loads(read_text("monitoring/grafana-dashboard.json"))
    check_dashboard(dashboard)
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    for query in queries:
        promql_parser.parse(re.sub(r"\$(__rate_interval|__interval)", "5m", query))

    assert len(queries) >= 6
    dashboard["panels"][0]["gridPosition"] = {"x": 0}
    with pytest.raises(ValueError, match=r"panels\[0\]\.gridPosition"):
        check_dashboard(dashboard)


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


def test_each_alert_says_what_is_wrong_and_the_page_what_to_do() -> None:
    page = OPERATIONS.read_text("utf-8")

    assert len(alerts()) >= 6
    for alert in alerts():
        assert alert["labels"]["severity"] in ("critical", "warning")
        assert alert["annotations"]["summary"]
        assert f"`{alert['alert']}`" in page
