"""What ``cluster/`` holds is what Ray, Kubernetes, Compose and dsort take, as far as can be told
without any of them running: fields, commands, versions. Nothing in it is open to the world."""

from __future__ import annotations

import copy
import json
import re
import shlex
import subprocess

import jsonschema
import pytest

from dsort.spec.load import parse_spec
from tests.support.cluster_files import (
    CLUSTER,
    command_lines,
    manifests,
    of_kind,
    parse_command,
    project,
    read_text,
    read_yaml,
    validate,
)

ROOT = CLUSTER.parent
VERSION = project()["project"]["version"]


# --- AWS -----------------------------------------------------------------------------------------


def test_rays_own_loader_takes_the_aws_cluster() -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = prepare_config(copy.deepcopy(read_yaml("aws.yaml")))
    validate_config(config)

    assert config["available_node_types"]["worker"]["max_workers"] == 8
    assert config["cluster_synced_files"] == []  # a default: they were filled in


def test_rays_own_loader_refuses_a_misspelt_field() -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = read_yaml("aws.yaml") | {"max_worker": 3}

    with pytest.raises(jsonschema.ValidationError, match="max_worker"):
        validate_config(prepare_config(config))


def test_ray_makes_neither_a_role_nor_a_key_nor_a_group_on_aws() -> None:
    """What Ray makes by itself has rights to everything, and lets SSH in from anywhere."""
    config = read_yaml("aws.yaml")
    nodes = [each["node_config"] for each in config["available_node_types"].values()]

    assert "ssh_private_key" in config["auth"]
    for node in nodes:
        assert {"IamInstanceProfile", "KeyName", "SecurityGroupIds"} <= node.keys()
        assert node["MetadataOptions"]["HttpTokens"] == "required"
    assert "security_group" not in config["provider"]  # would be added to Ray's own rules


def test_the_shell_takes_the_commands_of_the_aws_cluster() -> None:
    config = read_yaml("aws.yaml")
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
        read_text("aws.yaml"),
        read_text("Dockerfile"),
        *(str(each) for _, each in manifests()),
    ]
    plain = re.sub(r"(?m)#.*$", "", "\n".join(texts)).replace("\\\n", " ")
    commands = re.findall(r"pip install[^\n;&]*", plain)

    assert len(commands) > 3
    for command in commands:
        for word in command.split():
            assert not re.fullmatch(r"[\"']?dsort([=<>~\[].*)?", word), command
    wheel = f"dsort_shards-{VERSION}-py3-none-any.whl"
    assert read_text("aws.yaml").count(wheel) == 3  # mounted from, mounted at, installed
    assert "cluster/requirements.lock" in read_yaml("aws.yaml")["file_mounts"].values()


# --- Compose and the image -----------------------------------------------------------------------


def test_compose_has_fields_that_it_knows() -> None:
    validate(read_yaml("compose.yaml"), "compose")


def test_compose_names_services_volumes_and_files_that_are_there() -> None:
    compose = read_yaml("compose.yaml")
    services = compose["services"]
    mounted = [
        volume.split(":")[0] for each in services.values() for volume in each.get("volumes", [])
    ]

    for service in services.values():
        assert set(service.get("depends_on", {})) <= set(services)
    for source in mounted:
        assert (
            (CLUSTER / source).exists() if source.startswith(".") else source in compose["volumes"]
        )
    build = services["ray-head"]["build"]
    assert (CLUSTER / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).is_file()
    assert len([s for s in services if s.startswith("ray-worker-")]) == 2
    scratch = [
        v for s in services.values() for v in s.get("volumes", []) if v.endswith(":/scratch")
    ]
    assert len(scratch) == len(set(scratch)) == 3  # nodes whose disks are not shared


def test_compose_publishes_ports_to_this_machine_alone() -> None:
    services = read_yaml("compose.yaml")["services"]
    published = [port for service in services.values() for port in service.get("ports", [])]

    assert published
    for port in published:
        assert re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port), port


def test_the_image_is_built_of_files_that_are_there_and_not_ignored() -> None:
    allowed = [line[1:] for line in read_text("../.dockerignore").splitlines() if line[:1] == "!"]
    copies = re.findall(r"(?m)^COPY (?!--from)(.+) \S+$", read_text("Dockerfile"))
    sources = [source for copy_ in copies for source in copy_.split()]

    assert {"dsort", "pyproject.toml", "cluster/requirements.lock"} <= set(sources)
    for source in sources:
        assert (ROOT / source).exists(), source
        assert source in allowed, source
    assert project()["project"]["readme"] in sources
    assert set(project()["project"]["license-files"]) <= set(sources)


def test_the_image_runs_as_nobody_special_under_an_init() -> None:
    dockerfile = read_text("Dockerfile")
    users = re.findall(r"(?m)^USER (\S+)", dockerfile)

    assert users == ["1000:1000"]
    assert 'ENTRYPOINT ["tini", "--"]' in dockerfile
    assert "HEALTHCHECK NONE" in dockerfile


# --- commands ------------------------------------------------------------------------------------


def all_commands() -> list[tuple[str, list[str]]]:
    compose = read_yaml("compose.yaml")["services"]
    texts = {f"compose.yaml: {name}": each["command"] for name, each in compose.items()}
    texts |= {
        f"compose.yaml: {name} healthcheck": shlex.join(each["healthcheck"]["test"][1:])
        for name, each in compose.items()
        if "healthcheck" in each
    }
    texts["rayjob.yaml"] = of_kind("RayJob")["spec"]["entrypoint"]
    for field, commands in read_yaml("aws.yaml").items():
        if field.endswith("_start_ray_commands"):
            texts |= {f"aws.yaml: {field} {n}": each for n, each in enumerate(commands)}
    blocks = re.findall(r"(?m)^(?: {4}.*\n)+", read_text("README.md"))
    texts["README.md"] = re.sub(r"(?m)^ +(\$ )?", "", "".join(blocks))
    texts["Dockerfile"] = " ".join(
        json.loads(re.findall(r"(?m)^CMD (.*)", read_text("Dockerfile"))[0])
    )
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
        ("compose.yaml", "ray", "start"),
        ("compose.yaml", "ray", "job"),
        ("compose.yaml", "dsort", "start"),
        ("compose.yaml", "dsort", "gen-shards"),
        ("rayjob.yaml", "dsort", "start"),
        ("aws.yaml", "ray", "start"),
        ("README.md", "ray", "up"),
        ("README.md", "dsort", "start"),
    } <= found


def test_a_misspelt_option_of_a_command_is_found() -> None:
    with pytest.raises(ValueError, match="ray-adress"):
        parse_command(["dsort", "start", "-f", "spec.json", "--ray-adress", "auto"])
    with pytest.raises(ValueError, match="num-cpu"):
        parse_command(["ray", "start", "--head", "--num-cpu=0"])


@pytest.mark.parametrize("name", ["compose-spec.json", "kuberay/spec.yaml"])
def test_the_specs_are_specs(name: str) -> None:
    text = read_text(name) if name.endswith("json") else of_kind("ConfigMap")["data"]["spec.json"]

    # What is in capitals everybody has to put in; it is no bucket's name.
    text = re.sub(r"[A-Z]+-BUCKET", lambda found: found[0].lower(), text)
    spec = parse_spec(json.loads(text)).spec

    assert spec.overwrite
