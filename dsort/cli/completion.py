"""Completion of the command line in a shell: the script for each shell, the answers to the script,
and the lines in start-up files that load it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from dsort.errors import SpecError
from dsort.installation import COMMAND

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem, ShellComplete

COMPLETE: Final = f"_{COMMAND.upper().replace('-', '_')}_COMPLETE"
"""The environment variable that a shell sets to ``bash_source`` or ``bash_complete``."""
SHELLS: Final = ("bash", "zsh", "fish")


def answer(app: click.Command, asked: str) -> str:
    """The answer to a shell: its script, or the words that fit. ``asked``: see ``COMPLETE``."""
    shell, _, what = asked.partition("_")
    found = _of_shell(app, shell)
    return found.source() if what == "source" else found.complete()


def files(context: click.Context, param: click.Parameter, begun: str) -> list[CompletionItem[str]]:
    """Let the shell complete names of files. Fits ``shell_complete`` of a parameter."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(begun, type="file")]


def script(app: click.Command) -> str:
    """The script of the shell that runs the command."""
    return _of_shell(app, _running_shell()).source()


def install(app: click.Command) -> tuple[str, Path]:
    """Make the shell that runs the command complete dsort. Returns (the shell, the file with its
    script)."""
    shell = _running_shell()
    text = _of_shell(app, shell).source()
    home = Path.home()
    if shell == "bash":
        path = home / ".bash_completions" / f"{COMMAND}.sh"
        _add_line(home / ".bashrc", f"source '{path}'")
    elif shell == "zsh":
        path = home / ".zfunc" / f"_{COMMAND}"
        _add_line(home / ".zshrc", "fpath+=~/.zfunc; autoload -Uz compinit; compinit")
    else:
        path = home / ".config" / "fish" / "completions" / f"{COMMAND}.fish"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return shell, path


def _of_shell(app: click.Command, shell: str) -> ShellComplete:
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell) if shell in SHELLS else None
    if kind is None:
        raise SpecError(
            f"shell {shell!r} is not supported", hint="completion works in bash, zsh and fish"
        )
    return kind(app, {}, COMMAND, COMPLETE)


def _running_shell() -> str:
    """The shell that started this process, else the shell of the user's account."""
    started_by = Path(f"/proc/{os.getppid()}/comm")  # Linux
    names = [started_by.read_text().strip()] if started_by.exists() else []
    names.append(Path(os.environ.get("SHELL", "")).name)
    return next((name for name in names if name in SHELLS), names[-1])


def _add_line(path: Path, line: str) -> None:
    text = path.read_text("utf-8") if path.exists() else ""
    if line not in text:
        path.write_text(f"{text.rstrip()}\n{line}\n".lstrip(), "utf-8")
