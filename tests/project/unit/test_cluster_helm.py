"""The Helm chart: its values have a schema, templates ask for values that are there, and what was
rendered of it has no open port, no root and no mount without a volume."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
from typing import Any

import jsonschema
import pytest

from dsort.service.hosting.dispatcher import HAND_OVER_S_MAX
from dsort.service.server import SHUTDOWN_S_MAX
from tests.support.cluster_files import (
    CLUSTER,
    locked_versions,
    namespaces_let_in,
    parse_command,
    project,
    read_documents,
    read_text,
    read_yaml,
    validate,
    walk,
)

CHART = CLUSTER / "helm" / "dsort"
RENDERED: list[dict[str, Any]] = list(read_documents(read_text("helm/rendered.yaml")))
HELM = shutil.which("helm")


def of_kind(kind: str, name: str = "dsort") -> dict[str, Any]:
    (found,) = (
        each for each in RENDERED if each["kind"] == kind and each["metadata"]["name"] == name
    )
    return found


def pods() -> list[dict[str, Any]]:
    return [each for document in RENDERED for each in walk(document) if "containers" in each]


def check_values(values: object) -> None:
    schema = json.loads(read_text("helm/dsort/values.schema.json"))
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.Draft7Validator(schema).validate(values)


def test_values_have_a_schema_that_refuses_a_misspelt_one() -> None:
    values = read_yaml("helm/dsort/values.yaml")
    check_values(values)

    values["ray"]["worker"] = {}
    with pytest.raises(jsonschema.ValidationError, match="worker"):
        check_values(values)


def test_templates_ask_for_values_that_are_there_and_use_all() -> None:
    values = read_yaml("helm/dsort/values.yaml")
    text = "".join(path.read_text("utf-8") for path in sorted((CHART / "templates").iterdir()))
    asked = set(re.findall(r"\.Values\.([\w.]+)", text))

    for name in asked:
        found: Any = values
        for part in name.split("."):
            assert part in found, name
            found = found[part]
    for name, value in values.items():
        fields = [f"{name}.{field}" for field in value] if isinstance(value, dict) else [name]
        for field in fields:
            assert any(each == field or each.startswith(f"{field}.") for each in asked), field


def test_the_chart_is_of_this_version() -> None:
    chart = read_yaml("helm/dsort/Chart.yaml")
    version = project()["project"]["version"]
    (ray,) = locked_versions("../requirements-dev.lock")["ray"]

    assert (chart["apiVersion"], chart["version"]) == ("v2", version)
    assert chart["appVersion"] == f"{version}-ray{ray}"
    assert read_yaml("helm/dsort/values.yaml")["ray"]["version"] == ray


def test_what_was_rendered_is_all_that_the_chart_makes() -> None:
    assert sorted((each["kind"], each["metadata"]["name"]) for each in RENDERED) == [
        ("Ingress", "dsort"),
        ("Job", "dsort-admin"),
        ("NetworkPolicy", "dsort"),
        ("NetworkPolicy", "dsort-ray"),
        ("RayCluster", "dsort-ray"),
        ("Service", "dsort"),
        ("ServiceAccount", "dsort"),
        ("ServiceMonitor", "dsort"),
        ("StatefulSet", "dsort"),
    ]


def test_a_ray_cluster_has_the_fields_that_kuberay_publishes() -> None:
    cluster = copy.deepcopy(of_kind("RayCluster", "dsort-ray"))
    for pod in [each for each in walk(cluster) if "containers" in each]:
        for volume in pod["volumes"]:  # the manifests of cluster/ have none
            if "persistentVolumeClaim" in volume:
                volume["configMap"] = {"name": volume.pop("persistentVolumeClaim")["claimName"]}
    validate(cluster, "ray.io/v1 RayCluster")


def test_pods_run_without_rights_and_mount_what_they_have() -> None:
    assert len(pods()) == 4
    for pod in pods():
        assert pod["securityContext"]["runAsNonRoot"] is True
        claims = of_kind("StatefulSet")["spec"]["volumeClaimTemplates"]
        volumes = {
            each["name"] for each in [*pod.get("volumes", []), *(c["metadata"] for c in claims)]
        }
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            }
            assert {each["name"] for each in container.get("volumeMounts", [])} <= volumes
            assert container["resources"].keys() == {"requests", "limits"}


def test_no_pod_gets_variables_of_kubernetes_that_look_like_settings() -> None:
    """A Service named dsort would give each pod ``DSORT_PORT`` and ``DSORT_SERVICE_HOST``."""
    assert all(pod["enableServiceLinks"] is False for pod in pods())


def test_the_service_is_started_by_a_command_that_dsort_takes() -> None:
    (container,) = of_kind("StatefulSet")["spec"]["template"]["spec"]["containers"]

    parse_command(container["args"])
    head = of_kind("RayCluster", "dsort-ray")["metadata"]["name"]
    assert f"--ray-address=ray://{head}-head-svc:10001" in container["args"]
    secrets = {e["name"]: e["valueFrom"]["secretKeyRef"]
               for e in container["env"] if "valueFrom" in e}  # fmt: skip
    assert secrets["RAY_AUTH_TOKEN"] == {"name": head, "key": "auth_token"}
    assert secrets["DSORT_DATABASE_URL"] == {"name": "dsort-database", "key": "url"}


def test_probes_ask_routes_that_are_there_and_no_lost_database_ends_a_pod() -> None:
    (container,) = of_kind("StatefulSet")["spec"]["template"]["spec"]["containers"]
    paths = {name: container[name]["httpGet"]["path"] for name in container if "Probe" in name}

    assert paths == {
        "startupProbe": "/healthz",
        "readinessProbe": "/readyz",
        "livenessProbe": "/healthz",
    }


def test_a_pod_that_ends_has_the_time_to_hand_its_jobs_over() -> None:
    pod = of_kind("StatefulSet")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (word, before_s) = container["lifecycle"]["preStop"]["exec"]["command"]

    assert "--hand-over" in container["args"]
    assert word == "sleep"  # its Service stops sending requests meanwhile
    ending_s = int(before_s) + SHUTDOWN_S_MAX + HAND_OVER_S_MAX
    assert pod["terminationGracePeriodSeconds"] > ending_s


def test_selectors_find_the_pods_that_they_are_for() -> None:
    labels = of_kind("StatefulSet")["spec"]["template"]["metadata"]["labels"]
    ray = [each["template"]["metadata"]["labels"]
           for each in walk(of_kind("RayCluster", "dsort-ray")) if "template" in each]  # fmt: skip
    policies = [of_kind("NetworkPolicy", name)["spec"] for name in ("dsort", "dsort-ray")]

    assert of_kind("StatefulSet")["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert of_kind("Service")["spec"]["selector"].items() <= labels.items()
    assert policies[0]["podSelector"]["matchLabels"].items() <= labels.items()
    assert len(ray) == 2
    for each in ray:
        assert policies[1]["podSelector"]["matchLabels"].items() <= each.items()
    monitor = of_kind("ServiceMonitor")["spec"]
    service = of_kind("Service")["metadata"]["labels"]
    assert monitor["selector"]["matchLabels"].items() <= service.items()
    assert monitor["endpoints"][0]["path"] == "/metrics"


def test_tokens_pass_an_ingress_by_tls_alone() -> None:
    ingress = of_kind("Ingress")["spec"]

    assert ingress["tls"][0]["hosts"] == [rule["host"] for rule in ingress["rules"]]
    assert ingress["tls"][0]["secretName"]


def test_nobody_reaches_ray_but_its_pods_the_service_and_the_operator() -> None:
    rules = of_kind("NetworkPolicy", "dsort-ray")["spec"]["ingress"]

    assert all(rule["from"] for rule in rules)
    assert [[port["port"] for port in rule.get("ports", [])] for rule in rules] == [
        [],
        [10001],
        [8265],
    ]
    policy = of_kind("NetworkPolicy", "dsort-ray")["spec"]
    assert namespaces_let_in(policy) == ["kuberay-system"]
    values = read_yaml("helm/dsort/values.yaml")
    assert values["ray"]["operatorNamespace"] == "kuberay-system"


def test_the_admin_job_has_no_way_in_by_the_network() -> None:
    pod = of_kind("Job", "dsort-admin")["spec"]["template"]

    assert "ports" not in pod["spec"]["containers"][0]
    assert pod["metadata"]["labels"]["app.kubernetes.io/component"] == "admin"


@pytest.mark.slow
@pytest.mark.skipif(HELM is None, reason="no helm: `go install helm.sh/helm/v3/cmd/helm@v3.17.3`")
def test_helm_takes_the_chart_and_renders_what_was_kept() -> None:
    values = ["-f", str(CLUSTER / "helm" / "example-values.yaml")]
    linted = subprocess.run(
        [str(HELM), "lint", "--strict", str(CHART), *values], capture_output=True, text=True
    )
    rendered = subprocess.run(
        [
            str(HELM),
            "template",
            "dsort",
            str(CHART),
            "--kube-version",
            "1.33.0",
            "--namespace",
            "dsort",
            *values,
        ],
        capture_output=True,
        text=True,
    )

    assert linted.returncode == 0, linted.stdout
    assert rendered.stdout == read_text("helm/rendered.yaml"), rendered.stderr
