"""How tests get programs from Debian: without questions, without a database server that stays, and
also where one of apt's sources is away."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support import debian
from tests.support.debian import CannotInstall, apt_install

APT = """\
#!/bin/sh
echo "$DEBIAN_FRONTEND $*" >> {log}
cat {settings}/* >> {log} 2> /dev/null
case "$*" in {fails}) echo "E: it cannot be had" >&2; exit 100;; esac
"""


class Machine:
    """A machine whose ``apt-get`` writes down what it is asked, and what is set while it runs."""

    def __init__(self, directory: Path, fails: str = "never") -> None:
        self.settings = directory / "etc" / "createcluster.d"
        self.directory = directory
        self.log = directory / "log"
        programs = directory / "bin"
        programs.mkdir(exist_ok=True)
        text = APT.format(log=self.log, settings=self.settings, fails=fails)
        (programs / "apt-get").write_text(text)
        (programs / "apt-get").chmod(0o755)
        (programs / "dpkg-query").write_text("#!/bin/sh\nexit 1\n")
        (programs / "dpkg-query").chmod(0o755)

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(debian, "LOCK", tmp_path)
    monkeypatch.setattr(debian, "CLUSTER_SETTINGS", made.settings)
    return made


def test_all_is_downloaded_first_and_no_server_is_made(machine: Machine) -> None:
    apt_install("postgresql", "more")
    updated, downloaded, installed, setting = machine.lines()
    assert updated.endswith(" update")
    assert downloaded.endswith(" postgresql more --download-only")
    assert installed.endswith(" install --yes --no-install-recommends postgresql more")
    assert setting == "create_main_cluster = false"
    for line in (updated, downloaded, installed):
        assert line.startswith("noninteractive ")
    assert not machine.settings.parent.exists(), "something is left of it"


def test_settings_that_were_there_stay(machine: Machine) -> None:
    machine.settings.mkdir(parents=True)
    own = machine.settings / "own.conf"
    own.write_text("start_conf = 'manual'\n")
    apt_install("postgresql")
    assert list(machine.settings.iterdir()) == [own]


def test_a_source_that_is_away_matters_only_if_the_packages_are_missing(
    machine: Machine, tmp_path: Path
) -> None:
    Machine(tmp_path, fails="*update")
    apt_install("chromium")
    Machine(tmp_path, fails="*")
    with pytest.raises(CannotInstall, match="update` failed: E: it cannot be had"):
        apt_install("chromium")
    assert not machine.settings.exists()


def test_only_root_is_asked_to_install(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(CannotInstall, match="chromium: not installed, and only root can do so"):
        apt_install("chromium")
    assert not machine.log.exists()
