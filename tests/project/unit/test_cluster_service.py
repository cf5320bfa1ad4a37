"""The files in ``cluster/`` that start the service without Kubernetes have the fields and commands
that Compose, systemd and dsort accept. Nothing in them is open to the world."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from dsort.service.aistore.shards import RUN_S_MAX
from dsort.service.config import BODY_BYTES_MAX
from dsort.service.hosting.dispatcher import HAND_OVER_S_MAX
from dsort.service.server import SHUTDOWN_S_MAX
from tests.support.certificates import make_certificate
from tests.support.cluster_files import (
    CLUSTER,
    dsort_commands,
    image,
    parse_command,
    read_text,
    read_unit,
    read_yaml,
)


def test_compose_publishes_to_this_machine_alone_and_has_no_password() -> None:
    text = read_text("compose/service.yaml")
    services = read_yaml("compose/service.yaml")["services"]
    ports = [port for service in services.values() for port in service.get("ports", [])]

    assert sorted(ports) == ["127.0.0.1:8080:8000", "127.0.0.1:8333:8333"]
    secrets = re.findall(r"(?:PASSWORD|ACCESS_KEY|ACCESS_KEY_ID): (\S+)", text)
    assert len(secrets) == 3
    assert all(re.match(r"\$\{\w+:\?", each) for each in secrets)


def proxy(*, with_tls: bool) -> str:
    """The file of nginx, with TLS after the command that its head has."""
    text = read_text("proxy/dsort.conf")
    if not with_tls:
        return text
    (script,) = re.findall(r"(?m)^#   sed '(.*)' cluster/proxy/dsort.conf > ", text)
    command = ["sed", script, str(CLUSTER / "proxy" / "dsort.conf")]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_proxy_takes_what_the_service_takes_and_waits_as_long() -> None:
    said = dict(re.findall(r"(?m)^ +(\w+) (\d+)[ms]", proxy(with_tls=False)))

    assert BODY_BYTES_MAX <= int(said["client_max_body_size"]) << 20 <= 4 * BODY_BYTES_MAX
    assert int(said["proxy_read_timeout"]) * 60 > RUN_S_MAX
    assert {"client_header_timeout", "client_body_timeout", "send_timeout"} <= said.keys()


@pytest.mark.parametrize("with_tls", [False, True])
def test_nginx_reads_the_file_of_the_proxy(tmp_path: Path, with_tls: bool) -> None:
    nginx = shutil.which("nginx")
    if nginx is None:
        pytest.skip("no nginx")
    certificate, key = make_certificate(tmp_path)
    text = proxy(with_tls=with_tls).replace("//dsort", "//127.0.0.1")
    text = text.replace("/etc/nginx/dsort.crt", str(certificate))
    text = text.replace("/etc/nginx/dsort.key", str(key))
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    scratch = "".join(f"{each}_temp_path {tmp_path}/{each}; " for each in kinds)
    place = f"pid {tmp_path}/pid; error_log stderr; events {{}}"
    (tmp_path / "nginx.conf").write_text(f"{place} http {{ {scratch}\n{text} }}", "utf-8")

    done = subprocess.run(
        [nginx, "-t", "-q", "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf")],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_systemd_reads_the_units(tmp_path: Path) -> None:
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("no systemd-analyze")
    names = []
    for path in sorted((CLUSTER / "systemd").iterdir()):
        text = path.read_text("utf-8").replace(
            "ExecStart=/opt/dsort/bin/dsort", "ExecStart=/bin/ls"
        )
        (tmp_path / path.name).write_text(text, "utf-8")
        names.append(str(tmp_path / path.name))

    done = subprocess.run([verify, "verify", *names], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")


def test_the_nightly_unit_makes_its_seed_of_the_date() -> None:
    (line,) = re.findall(
        r"(?ms)^ExecStart=(.*?[^\\])\n", read_text("systemd/dsort-nightly.service")
    )
    shell = line.replace("\\\n", " ").replace("$$", "$").replace("%%", "%")
    _, option, command = shlex.split(shell)

    printed = subprocess.run(
        ["/bin/sh", option, command.replace("exec /opt/dsort/bin/", "echo ")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    words = shlex.split(printed)
    parse_command(words)
    assert re.fullmatch(r"20\d{6}", words[words.index("--seed") + 1])


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
    service = read_yaml("compose/service.yaml")["services"]["dsort"]
    command = shlex.split(service["command"])

    assert "--hand-over" in command
    assert int(service["stop_grace_period"].removesuffix("s")) > ENDING_S
    assert '"--hand-over"' in re.findall(r"(?m)^CMD (.*)", image("service"))[-1]
    unit = read_unit()
    assert unit["KillMode"] == ["process"]
    assert "--hand-over" not in unit["ExecStart"][0]
    assert int(unit["TimeoutStopSec"][0]) > SHUTDOWN_S_MAX


def commands() -> list[str]:
    compose = read_yaml("compose/service.yaml")["services"]
    found = [compose[name]["command"] for name in ("dsort", "token")]
    found += dsort_commands(read_text("systemd/dsort.service"))
    found += [" ".join(json.loads(re.findall(r"(?m)^CMD (.*)", image("service"))[0]))]
    return found


@pytest.mark.parametrize("command", commands())
def test_a_command_is_one_that_dsort_takes(command: str) -> None:
    parse_command(shlex.split(command))
