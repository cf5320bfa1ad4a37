"""Shells complete verbs, options and their values, and load little for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from dsort.cli.main import COMPLETE, main, whole_app
from dsort.cli.options import MoveChoice

HEAVY = {"botocore", "httpx", "numpy", "pyarrow", "ray", "rich"}
SCRIPTS = {
    "bash": """
eval "$(_DSORT_COMPLETE=source_bash dsort)"
COMP_WORDS=(dsort schedule add --ca) COMP_CWORD=3
_dsort_completion dsort && echo "${COMPREPLY[@]}"
""",
    "zsh": """
autoload -Uz compinit && compinit -u -D && eval "$(_DSORT_COMPLETE=source_zsh dsort)"
words=(dsort schedule add --ca) CURRENT=4; _arguments() { echo $1 }; _dsort_completion
""",
    "fish": """
_DSORT_COMPLETE=source_fish dsort | source; complete -C 'dsort schedule add --ca'
""",
}


class Shell:
    """Asks as the script of a shell asks; the answer in lines."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capfd = capfd

    def bash(self, line: str) -> list[str]:
        self._monkeypatch.setenv(COMPLETE, "complete_bash")
        self._monkeypatch.setenv("COMP_WORDS", line)
        self._monkeypatch.setenv("COMP_CWORD", str(line.count(" ")))
        return self._answer()

    def zsh(self, line: str) -> list[str]:
        self._monkeypatch.setenv(COMPLETE, "complete_zsh")
        self._monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
        return self._answer()

    def _answer(self) -> list[str]:
        assert main([]) == 0
        said = self._capfd.readouterr()
        assert said.err == ""
        return said.out.splitlines()


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Shell:
    return Shell(monkeypatch, capfd)


def test_verbs_options_and_values_are_completed(shell: Shell) -> None:
    assert shell.bash("dsort st") == ["start", "stop"]
    assert shell.bash("dsort schedule r") == ["resume", "run", "rm"]
    assert shell.bash("dsort start --max-m") == ["--max-memory"]
    assert shell.bash("dsort start --move ") == list(get_args(MoveChoice))
    assert shell.bash("dsort start --progress j") == ["json"]


def test_where_a_name_stands_the_shell_completes_files(shell: Shell) -> None:
    for line in ("dsort start im", "dsort start --root im", "dsort start -f spec.ya"):
        assert "".join(shell.bash(line)) == ""
    assert shell.zsh("dsort start im") == ["_files"]


def test_every_verb_is_completed_with_words_about_its_options(shell: Shell) -> None:
    import typer

    command: object = typer.main.get_command(whole_app())
    verbs = []
    for name, each in command.commands.items():  # type: ignore[attr-defined]
        below = getattr(each, "commands", None)
        verbs += [f"{name} {inner}" for inner in below] if below else [name]
    assert len(verbs) > 30
    for verb in verbs:
        assert '"--help":"Show this message and exit.' in "\n".join(shell.zsh(f"dsort {verb} --"))


def test_little_is_loaded_to_complete() -> None:
    code = f"""
import sys
from dsort.cli.main import main
main([])
loaded = {HEAVY!r} & set(sys.modules)
sys.exit(f"loaded: {{loaded}}" if loaded else 0)
"""
    asked = {COMPLETE: "complete_bash", "COMP_WORDS": "dsort start --", "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **asked}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "--max-memory" in done.stdout


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_shell_takes_its_script(name: str, tmp_path: Path) -> None:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name}")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [found, "-c", SCRIPTS[name]],
        env={"PATH": path, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "--catch-up" in done.stdout


def test_a_shell_that_is_not_known_is_named(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(COMPLETE, "complete_tcsh")
    assert main([]) == 1
    assert "tcsh not supported" in capfd.readouterr().err
