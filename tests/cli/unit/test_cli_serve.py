"""``dsort serve`` hands the service what its options say, with defaults that are safe."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from dsort.service import server as running
from dsort.service.aistore.guest import AistoreGuest
from dsort.service.config import ServiceConfig
from tests.support.commands import CommandLine

Serve = Callable[..., tuple[ServiceConfig, dict[str, Any]]]


@pytest.fixture
def serve(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> Serve:
    """The configuration, and what else is said, that the options lead to; nothing is served."""
    heard: list[tuple[ServiceConfig, dict[str, Any]]] = []
    monkeypatch.setattr(running, "run_service", lambda config, **more: heard.append((config, more)))

    def serve(*args: str | Path) -> tuple[ServiceConfig, dict[str, Any]]:
        ended = cli("serve", *args)
        assert ended.code == 0, ended.err
        return heard.pop()

    return serve


def test_by_default_only_this_machine_is_served_and_asked_for_tokens(
    serve: Serve, tmp_path: Path
) -> None:
    config, more = serve("--root", tmp_path, "--state-dir", tmp_path / "state")
    assert (config.host, config.port, config.tls) == ("127.0.0.1", 8080, False)
    assert (config.no_auth, config.metrics_open, config.ekm_allow_private) == (False, False, False)
    assert not config.insecure
    assert (config.allow, config.ekm_allow_hosts) == ((), ())
    run = config.run
    assert (run.runtime, run.ray_address, run.workers) == ("local", None, None)
    assert (config.jobs_running_max, config.running_per_owner_max) == (1, None)
    assert run.root == tmp_path.resolve()
    assert config.database_url.startswith("sqlite:///")
    assert str(tmp_path / "state") in config.database_url
    assert (more["url_file"], more["access_log"], "guest" in more) == (None, False, False)


def test_aistore_adds_the_guest(serve: Serve, tmp_path: Path) -> None:
    _, more = serve("--aistore", "--state-dir", tmp_path / "state")
    assert isinstance(more["guest"], AistoreGuest)


def test_the_replica_keeps_its_name(serve: Serve, tmp_path: Path) -> None:
    first, _ = serve("--state-dir", tmp_path / "a")
    again, _ = serve("--state-dir", tmp_path / "a")
    other, _ = serve("--state-dir", tmp_path / "b")
    assert first.replica == again.replica != other.replica


@pytest.mark.parametrize(
    ("args", "field", "value"),
    [
        (["--host", "::1", "--no-auth"], "host", "::1"),
        (["--port", "0"], "port", 0),
        (["--no-auth"], "no_auth", True),
        (["--metrics-open"], "metrics_open", True),
        (["--allow", "s3://a*", "--allow", "/a b/*"], "allow", ("s3://a*", "file:///a%20b/*")),
        (["--ekm-allow-host", "*.example.org"], "ekm_allow_hosts", ("*.example.org",)),
        (["--ekm-allow-host", "h:8443"], "ekm_allow_hosts", ("h:8443",)),
        (["--insecure"], "insecure", True),
        (["--ekm-allow-private"], "ekm_allow_private", True),
        (["--max-running-jobs", "3"], "jobs_running_max", 3),
        (["--max-running-plans", "4"], "plans_running_max", 4),
        (["--max-running-per-owner", "5"], "running_per_owner_max", 5),
        (["--max-queued-per-owner", "6"], "queued_per_owner_max", 6),
        ([], "queued_per_owner_max", 1000),
        ([], "job_time_max_s", None),
        (["--max-job-time", "6h"], "job_time_max_s", 21_600.0),
        (["--requests-per-minute", "7"], "requests_per_minute_max", 7),
        (["--workers", "2"], "run.workers", 2),
        (["--max-memory", "1GiB"], "run.memory_max_bytes", 1 << 30),
        (["--move", "spill"], "run.move", "spill"),
        (["--ray"], "run.runtime", "ray"),
        (["--ray-address", "h:6379"], "run.ray_address", "h:6379"),
        (["--database", "postgresql://h/d"], "database_url", "postgresql://h/d"),
    ],
)  # fmt: skip
def test_options_say_what_they_are_called(
    serve: Serve, tmp_path: Path, args: list[str], field: str, value: object
) -> None:
    config, _ = serve("--state-dir", tmp_path / "state", *args)
    assert attrgetter(field)(config) == value


@pytest.mark.parametrize("text", ["", "6", "-1h", "3s", "for ever"])
def test_an_unreadable_time_is_refused(cli: CommandLine, tmp_path: Path, text: str) -> None:
    ended = cli("serve", "--state-dir", tmp_path / "state", "--max-job-time", text)
    assert ended.code == 2
    assert "--max-job-time" in ended.err
    assert "6h" in ended.err


def test_certificates_that_are_not_there_are_refused(cli: CommandLine, tmp_path: Path) -> None:
    ended = cli("serve", "--ssl-certfile", tmp_path / "none.pem", "--ssl-keyfile", tmp_path / "k")
    assert ended.code == 2
    assert "--ssl-certfile" in ended.err


def test_reactions_are_checked_when_the_service_starts(serve: Serve, cli: CommandLine) -> None:
    given = ("--reaction", "missing_shards=abort", "--reaction", "duplicate_keys=rename")
    config, _ = serve("--no-auth", *given)
    assert config.reactions == {"missing_shards": "abort", "duplicate_keys": "rename"}
    wrong = cli("serve", "--no-auth", "--reaction", "missing_shards=maybe", "--reaction", "x")
    assert wrong.code == 2
    assert "missing_shards" in wrong.err
    assert '"x" is no NAME=VALUE' in wrong.err
