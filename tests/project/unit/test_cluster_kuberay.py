"""The manifests in ``cluster/kuberay/`` have the fields that KubeRay and Kubernetes publish, name
what is there, and ask for no more rights than they need."""

from __future__ import annotations

import copy
import re
from typing import Any

import jsonschema
import pytest

from dsort.sizes import parse_size_bytes
from tests.support.cluster_files import (
    manifests,
    namespaces_let_in,
    of_kind,
    read_text,
    validate,
    walk,
)

OBJECTS = list(manifests())
KINDS = [f"{name}-{each['kind']}" for name, each in OBJECTS]


def kind_of(manifest: dict[str, Any]) -> str:
    return f"{manifest['apiVersion']} {manifest['kind']}"


@pytest.mark.parametrize(("name", "manifest"), OBJECTS, ids=KINDS)
def test_a_manifest_has_the_fields_of_its_kind(name: str, manifest: dict[str, Any]) -> None:
    validate(manifest, kind_of(manifest))


def test_a_misspelt_field_of_a_manifest_is_found() -> None:
    manifest = copy.deepcopy(of_kind("RayJob"))
    manifest["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["template"]["spec"]["volume"] = []

    with pytest.raises(jsonschema.ValidationError, match="volume"):
        validate(manifest, kind_of(manifest))


def test_each_mount_has_its_volume() -> None:
    pods = [each for _, manifest in OBJECTS for each in walk(manifest) if "containers" in each]

    assert len(pods) == 6
    for pod in pods:
        volumes = {volume["name"] for volume in pod.get("volumes", [])}
        for container in pod["containers"]:
            assert {mount["name"] for mount in container.get("volumeMounts", [])} <= volumes


def test_what_manifests_name_is_there() -> None:
    accounts = {each["metadata"]["name"] for _, each in OBJECTS if each["kind"] == "ServiceAccount"}
    used = {each["serviceAccountName"] for _, m in OBJECTS for each in walk(m)
            if "serviceAccountName" in each}  # fmt: skip
    nightly = of_kind("RoleBinding")

    assert used == accounts == {"dsort", "dsort-nightly"}
    assert nightly["roleRef"]["name"] == of_kind("Role")["metadata"]["name"]
    assert nightly["subjects"][0]["name"] == "dsort-nightly"
    mounted = next(each for each in walk(of_kind("CronJob")) if "configMap" in each)
    comment = read_text("kuberay/cronjob.yaml").partition("apiVersion")[0]
    assert f"create configmap {mounted['configMap']['name']} --from-file=rayjob.yaml" in comment


def test_the_nightly_job_may_do_nothing_but_create_ray_jobs() -> None:
    assert of_kind("Role")["rules"] == [
        {"apiGroups": ["ray.io"], "resources": ["rayjobs"], "verbs": ["create"]}
    ]


def test_a_nightly_job_is_over_before_the_next_begins() -> None:
    assert of_kind("RayJob")["spec"]["activeDeadlineSeconds"] < 24 * 3600
    assert re.fullmatch(r"\d+ \d+ \* \* \*", of_kind("CronJob")["spec"]["schedule"])


def test_the_cluster_of_a_job_is_that_which_stays() -> None:
    assert of_kind("RayJob")["spec"]["rayClusterSpec"] == of_kind("RayCluster")["spec"]


def test_workers_get_whole_cpus_and_the_disk_that_scratch_may_take() -> None:
    (group,) = of_kind("RayCluster")["spec"]["workerGroupSpecs"]
    pod = group["template"]["spec"]
    (container,) = pod["containers"]
    resources = container["resources"]
    scratch = next(each for each in pod["volumes"] if each["name"] == "scratch")

    assert resources["limits"]["cpu"].isdecimal()  # Ray counts them, dsort takes one worker each
    assert resources["requests"]["memory"] == resources["limits"]["memory"]
    assert resources["requests"]["ephemeral-storage"] == scratch["emptyDir"]["sizeLimit"]
    assert parse_size_bytes(scratch["emptyDir"]["sizeLimit"]) > 0


def test_no_pod_of_any_other_namespace_reaches_ray_but_the_operators() -> None:
    assert namespaces_let_in(of_kind("NetworkPolicy")["spec"]) == ["kuberay-system"]


def test_pods_are_covered_by_the_network_policy() -> None:
    policy = of_kind("NetworkPolicy")["spec"]
    labels = policy["podSelector"]["matchLabels"]
    templates = [each for kind in ("RayCluster", "RayJob") for each in walk(of_kind(kind))
                 if "spec" in each and "metadata" in each and "kind" not in each]  # fmt: skip

    assert len(templates) == 5
    for template in templates:
        assert labels.items() <= template["metadata"]["labels"].items()
