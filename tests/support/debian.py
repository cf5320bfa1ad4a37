"""Installs packages of Debian for tests that need a program that dsort does not include.

Only root can do so, on a machine with ``apt-get``; elsewhere the caller decides whether the test
fails or is skipped. A lock on dpkg's directory keeps two test processes from installing at once,
and leaves no file. All packages are downloaded before the first is installed: a timeout ends only
downloads.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import pytest

DOWNLOAD_TIMEOUT_S = 200
CLUSTER_SETTINGS = Path("/etc/postgresql-common/createcluster.d")
NO_CLUSTER = "create_main_cluster = false\n"
LOCK = Path("/var/lib/dpkg")


class CannotInstall(Exception):  # noqa: N818
    """The packages could not be installed here; ``reason`` says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def apt_install(*packages: str) -> None:
    """Install Debian packages without questions to the user. Raises `CannotInstall`."""
    names = " ".join(packages)
    if shutil.which("apt-get") is None:
        raise CannotInstall(f"{names}: there is no apt-get on this machine")
    if os.geteuid() != 0:
        raise CannotInstall(f"{names}: not installed, and only root can do so")
    with _alone():
        if not _all_installed(packages):
            _install(packages)


def skip_outside_ci(reason: str) -> NoReturn:
    """Skip the test for this reason; fail instead where ``CI`` is set."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@contextmanager
def _alone() -> Iterator[None]:
    lock = os.open(LOCK, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _all_installed(packages: tuple[str, ...]) -> bool:
    """Whether another process has installed them while this one waited for its turn."""
    asked = subprocess.run(
        ["dpkg-query", "--show", "--showformat=${db:Status-Status}\n", *packages],
        capture_output=True,
        text=True,
        check=False,
    )
    return asked.returncode == 0 and set(asked.stdout.split()) == {"installed"}


def _install(packages: tuple[str, ...]) -> None:
    install = ("install", "--yes", "--no-install-recommends", *packages)
    stale: CannotInstall | None = None
    try:
        _apt_get("update", timeout_s=DOWNLOAD_TIMEOUT_S)
    except CannotInstall as error:  # one of many sources may be unreachable
        stale = error
    try:
        _apt_get(*install, "--download-only", timeout_s=DOWNLOAD_TIMEOUT_S)
    except CannotInstall as error:
        raise (stale or error) from error
    with without_a_cluster(CLUSTER_SETTINGS):
        _apt_get(*install)


@contextmanager
def without_a_cluster(settings: Path) -> Iterator[None]:
    """Packages of PostgreSQL that are installed in this block start no server of the machine, which
    would listen on port 5432 from then on. Afterwards the settings are as before."""
    missing = [each for each in (settings, settings.parent) if not each.exists()]
    settings.mkdir(parents=True, exist_ok=True)
    file = settings / "dsort-tests.conf"
    file.write_text(NO_CLUSTER, encoding="utf-8")
    try:
        yield
    finally:
        file.unlink(missing_ok=True)
        for each in missing:
            with suppress(OSError):  # the directory has other files by now
                each.rmdir()


def _apt_get(*arguments: str, timeout_s: float | None = None) -> None:
    command = ["apt-get", "-o", "DPkg::Lock::Timeout=120", "-o", "Acquire::Retries=3"]
    command += ["--quiet", *arguments]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CannotInstall(f"`{' '.join(command)}` took over {timeout_s} s") from error
    if done.returncode != 0:
        last_lines = "\n".join((done.stderr or done.stdout).strip().splitlines()[-3:])
        raise CannotInstall(f"`{' '.join(command)}` failed: {last_lines}")
