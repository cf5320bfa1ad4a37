"""What ``cluster/`` holds has the fields and types that Kubernetes, Compose, Prometheus and Grafana
publish; and what has others would be found."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import jsonschema
import promql_parser
import pytest

from tests.support.cluster_files import manifests, read_documents, read_text, read_yaml, walk
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


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("spec.template.spec.terminationGracePeriod", 30, "terminationGracePeriod"),
        ("spec.template.spec.terminationGracePeriodSeconds", "30s", "Expected `int"),
        ("spec.selector", None, "selector"),
    ],
)
def test_a_field_that_kubernetes_has_not_is_found(path: str, value: object, words: str) -> None:
    document = copy.deepcopy(next(each for each in RENDERED if each["kind"] == "StatefulSet"))
    *parents, name = path.split(".")
    owner = document
    for parent in parents:
        owner = owner[parent]
    owner[name] = value

    with pytest.raises(ValueError, match=words):
        check_kubernetes(document)


def test_a_service_monitor_has_the_fields_of_the_operator() -> None:
    (monitor,) = (each for each in RENDERED if each["kind"] == "ServiceMonitor")
    (endpoint,) = monitor["spec"]["endpoints"]

    assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
    assert monitor["spec"].keys() <= {"selector", "endpoints", "namespaceSelector"}
    assert endpoint.keys() <= {"port", "path", "interval", "authorization", "honorLabels"}
    assert endpoint["authorization"].keys() == {"type", "credentials"}
    assert endpoint["authorization"]["credentials"].keys() == {"name", "key"}


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


def test_a_query_that_is_none_is_found() -> None:
    with pytest.raises(ValueError):
        promql_parser.parse("sum(rate(dsort_jobs_total[5m]) by (x)")
