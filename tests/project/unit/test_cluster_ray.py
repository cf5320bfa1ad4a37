"""The files in ``cluster/`` that start Ray nodes, with KubeRay or without, have the fields and
commands that Ray, Compose and dsort accept. Nothing in them is open to the world."""

from __future__ import annotations

import copy
import json
import re
import shlex
import subprocess
from typing import Any

import pytest

from dsort.spec.load import parse_spec
from tests.support.cluster_files import (
    command_lines,
    image,
    manifests,
    namespaces_let_in,
    of_kind,
    parse_command,
    project,
    read_json,
    read_text,
    read_yaml,
    validate,
    walk,
)

VERSION = project()["project"]["version"]


# --- AWS -----------------------------------------------------------------------------------------


def test_rays_own_loader_takes_the_aws_cluster() -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = prepare_config(copy.deepcopy(read_yaml("aws/cluster.yaml")))
    validate_config(config)

    assert config["available_node_types"]["worker"]["max_workers"] == 8
    assert config["cluster_synced_files"] == []  # a default: they were filled in


def test_ray_makes_neither_a_role_nor_a_key_nor_a_group_on_aws() -> None:
    """What Ray makes by itself has rights to everything, and lets SSH in from anywhere."""
    config = read_yaml("aws/cluster.yaml")
    nodes = [each["node_config"] for each in config["available_node_types"].values()]

    assert "ssh_private_key" in config["auth"]
    for node in nodes:
        assert {"IamInstanceProfile", "KeyName", "SecurityGroupIds"} <= node.keys()
        assert node["MetadataOptions"]["HttpTokens"] == "required"
    assert "security_group" not in config["provider"]  # would be added to Ray's own rules


def test_the_shell_takes_the_commands_of_the_aws_cluster() -> None:
    config = read_yaml("aws/cluster.yaml")
    commands = [
        command
        for field, value in config.items()
        if field.endswith("_commands")
        for command in value
    ]

    for command in commands:
        checked = subprocess.run(["bash", "-n", "-c", command], capture_output=True, check=False)
        assert checked.returncode == 0, (command, checked.stderr)
    assert any("/scratch" in command for command in commands)


def test_no_node_installs_what_others_publish_as_dsort() -> None:
    """The name belongs to another project on PyPI: nodes get our wheel, by its path."""
    texts = [
        read_text("aws/cluster.yaml"),
        read_text("Dockerfile"),
        *(str(each) for _, each in manifests()),
    ]
    plain = re.sub(r"(?m)#.*$", "", "\n".join(texts)).replace("\\\n", " ")
    commands = re.findall(r"pip (?:--python \S+ )?install[^\n;&]*", plain)

    assert len(commands) > 3
    for command in commands:
        for word in command.split():
            assert not re.fullmatch(r"[\"']?dsort([=<>~\[].*)?", word), command
    wheel = f"dsort_shards-{VERSION}-py3-none-any.whl"
    assert read_text("aws/cluster.yaml").count(wheel) == 3  # mounted from, mounted at, installed
    assert "cluster/requirements.lock" in read_yaml("aws/cluster.yaml")["file_mounts"].values()


# --- Compose -------------------------------------------------------------------------------------


def test_compose_publishes_ports_to_this_machine_alone() -> None:
    services = read_yaml("compose/ray.yaml")["services"]
    published = [port for service in services.values() for port in service.get("ports", [])]

    assert published
    for port in published:
        assert re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port), port


# --- commands ------------------------------------------------------------------------------------


def all_commands() -> list[tuple[str, list[str]]]:
    compose = read_yaml("compose/ray.yaml")["services"]
    texts = {f"compose/ray.yaml: {name}": each["command"] for name, each in compose.items()}
    texts |= {
        f"compose/ray.yaml: {name} healthcheck": shlex.join(each["healthcheck"]["test"][1:])
        for name, each in compose.items()
        if "healthcheck" in each
    }
    texts["rayjob.yaml"] = of_kind("RayJob")["spec"]["entrypoint"]
    for field, commands in read_yaml("aws/cluster.yaml").items():
        if field.endswith("_start_ray_commands"):
            texts |= {f"aws/cluster.yaml: {field} {n}": each for n, each in enumerate(commands)}
    blocks = re.findall(r"(?m)^(?: {4}.*\n)+", read_text("README.md"))
    texts["README.md"] = re.sub(r"(?m)^ +(\$ )?", "", "".join(blocks))
    texts["Dockerfile"] = " ".join(json.loads(re.findall(r"(?m)^CMD (.*)", image("ray"))[0]))
    return [(place, words) for place, text in texts.items() for words in command_lines(text)]


@pytest.mark.parametrize(
    ("place", "words"), all_commands(), ids=[" ".join(w[:3]) + f" ({p})" for p, w in all_commands()]
)
def test_a_command_is_one_that_dsort_or_ray_takes(place: str, words: list[str]) -> None:
    if words == ["dsort", "--help"]:
        return
    parse_command(words)


def test_commands_are_found_everywhere() -> None:
    found = {(place.split(":")[0], *words[:2]) for place, words in all_commands()}

    assert {
        ("compose/ray.yaml", "ray", "start"),
        ("compose/ray.yaml", "ray", "job"),
        ("compose/ray.yaml", "dsort", "start"),
        ("compose/ray.yaml", "dsort", "gen-shards"),
        ("rayjob.yaml", "dsort", "shuffle"),
        ("aws/cluster.yaml", "ray", "start"),
        ("README.md", "ray", "up"),
        ("README.md", "dsort", "start"),
    } <= found


def test_the_spec_of_the_demo_is_a_spec() -> None:
    assert parse_spec(read_json("compose/ray-spec.json")).spec.overwrite


OBJECTS = list(manifests())
KINDS = [f"{name}-{each['kind']}" for name, each in OBJECTS]


def kind_of(manifest: dict[str, Any]) -> str:
    return f"{manifest['apiVersion']} {manifest['kind']}"


@pytest.mark.parametrize(("name", "manifest"), OBJECTS, ids=KINDS)
def test_a_manifest_has_the_fields_of_its_kind(name: str, manifest: dict[str, Any]) -> None:
    validate(manifest, kind_of(manifest))


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
