"""Shells complete verbs, options and their values, and load little for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dsort.cli import completion
from dsort.cli.completion import COMPLETE
from dsort.cli.main import main, whole_app

HEAVY = {"botocore", "httpx", "numpy", "pyarrow", "pydantic", "ray", "rich"}
SCRIPTS = {
    "bash": """
eval "$(_DSORT_COMPLETE=bash_source dsort)"
COMP_WORDS=(dsort schedule add --ca) COMP_CWORD=3
_dsort_completion dsort && echo "${COMPREPLY[@]}"
""",
    "zsh": """
autoload -Uz compinit && compinit -u -D && eval "$(_DSORT_COMPLETE=zsh_source dsort)"
words=(dsort schedule add --ca) CURRENT=4
_describe() { print -l $completions_with_descriptions }; _dsort_completion
""",
    "fish": """
_DSORT_COMPLETE=fish_source dsort | source; complete -C 'dsort schedule add --ca'
""",
}


class Shell:
    """Asks as the script of a shell asks; the answer in lines."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capfd = capfd

    def bash(self, line: str) -> list[str]:
        """The words that fit; "file," stands for names of files."""
        answer = self._answer("bash", line)
        return [each.removeprefix("plain,") for each in answer]

    def zsh(self, line: str) -> list[str]:
        """Three lines for each word: its kind, the word, and what it means."""
        return self._answer("zsh", line)

    def _answer(self, shell: str, line: str) -> list[str]:
        self._monkeypatch.setenv(COMPLETE, f"{shell}_complete")
        self._monkeypatch.setenv("COMP_WORDS", line)
        self._monkeypatch.setenv("COMP_CWORD", str(line.count(" ")))
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
    assert shell.bash("dsort start --move ") == ["auto", "map", "range", "spill"]
    assert shell.bash("dsort start --progress j") == ["json"]


def test_where_a_name_stands_the_shell_completes_files(shell: Shell) -> None:
    for line in ("dsort start im", "dsort start --root im", "dsort start -f spec.ya"):
        begun = line.split()[-1]
        assert shell.bash(line) == [f"file,{begun}"]
        assert shell.zsh(line)[:2] == ["file", begun]


def test_every_verb_is_completed_with_words_about_its_options(shell: Shell) -> None:
    verbs = []
    for name, each in whole_app().commands.items():
        below = getattr(each, "commands", None)
        verbs += [f"{name} {inner}" for inner in below] if below else [name]
    assert len(verbs) > 30
    for verb in verbs:
        answer = shell.zsh(f"dsort {verb} --")
        assert answer[-3:] == ["plain", "--help", "Show this message and exit."]


def test_little_is_loaded_to_complete() -> None:
    code = f"""
import sys
from dsort.cli.main import main
main([])
loaded = {HEAVY!r} & set(sys.modules)
sys.exit(f"loaded: {{loaded}}" if loaded else 0)
"""
    asked = {COMPLETE: "bash_complete", "COMP_WORDS": "dsort start --", "COMP_CWORD": "2"}
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


@pytest.mark.parametrize("asked", ["tcsh_complete", "tcsh_source", "complete_bash"])
def test_a_shell_that_is_not_known_is_named(
    asked: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(COMPLETE, asked)
    assert main([]) == 2
    assert f"shell '{asked.partition('_')[0]}' is not supported" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("shell", "start_up"), [("bash", ".bashrc"), ("zsh", ".zshrc"), ("fish", None)]
)
def test_completion_is_installed_once(
    shell: str, start_up: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "_running_shell", lambda: shell)
    monkeypatch.setenv("HOME", str(tmp_path))
    if start_up:
        (tmp_path / start_up).write_text("export A=1\n")
    for _ in range(2):
        assert main(["--install-completion"]) == 0
    scripts = [each for each in tmp_path.rglob("*dsort*") if each.is_file()]
    assert len(scripts) == 1
    assert f"{shell}_complete" in scripts[0].read_text()
    if start_up:
        lines = (tmp_path / start_up).read_text().splitlines()
        assert lines[0] == "export A=1"
        assert len(lines) == 2


def test_the_script_of_the_running_shell_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # No shell starts a test, so that of the user's account counts.
    monkeypatch.setattr(os, "getppid", lambda: os.getpid())
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert main(["--show-completion"]) == 0
    assert "complete --no-files --command dsort" in capfd.readouterr().out
