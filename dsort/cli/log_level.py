"""``--log-level``: an option of all commands, in a module of its own, so that a list of commands
loads no other module for it."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import click

from dsort.cli.parameters import Option, parameter

__all__ = ["LogLevel", "add_log_level"]

DEFAULT: Final = "warning"
NAME: Final = "log_level"
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"] | None,
    Option(
        "--log-level",
        metavar="LEVEL",
        envvar="DSORT_LOG",
        help="Write log lines of this level and above to stderr: debug, info, warning or error.  "
        "[default: warning]",
    ),
]


def add_log_level(command: click.Command) -> None:
    """Give ``command`` the option ``--log-level``, in front of ``--debug``. A command that has no
    ``--debug``, or sets up its log itself, stays as it is."""
    names = [each.name for each in command.params]
    verb = command.callback
    if "debug" not in names or NAME in names or verb is None:
        return
    command.params.insert(names.index("debug"), parameter(NAME, LogLevel, None))

    def with_lines(**given: Any) -> None:
        from dsort.log_lines import lines_on_stderr

        with lines_on_stderr(given.pop(NAME) or DEFAULT):
            verb(**given)

    command.callback = with_lines
