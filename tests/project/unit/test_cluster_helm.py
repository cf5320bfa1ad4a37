"""The Helm chart: its values have a schema, templates ask for values that are there, and what was
rendered of it has no open port, no root and no mount without a volume."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any

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


def test_the_service_is_started_by_a_command_that_dsort_takes() -> None:
    (container,) = of_kind("StatefulSet")["spec"]["template"]["spec"]["containers"]

    parse_command(container["args"])
    head = of_kind("RayCluster", "dsort-ray")["metadata"]["name"]
    assert f"--ray-address=ray://{head}-head-svc:10001" in container["args"]
    secrets = {e["name"]: e["valueFrom"]["secretKeyRef"]
               for e in container["env"] if "valueFrom" in e}  # fmt: skip
    assert secrets["RAY_AUTH_TOKEN"] == {"name": head, "key": "auth_token"}
    assert secrets["DSORT_DATABASE_URL"] == {"name": "dsort-database", "key": "url"}


def test_a_pod_that_ends_has_the_time_to_hand_its_jobs_over() -> None:
    pod = of_kind("StatefulSet")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (word, before_s) = container["lifecycle"]["preStop"]["exec"]["command"]

    assert "--hand-over" in container["args"]
    assert word == "sleep"  # its Service stops sending requests meanwhile
    ending_s = int(before_s) + SHUTDOWN_S_MAX + HAND_OVER_S_MAX
    assert pod["terminationGracePeriodSeconds"] > ending_s


def test_nothing_reaches_ray_but_its_pods_the_service_and_the_operator() -> None:
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
