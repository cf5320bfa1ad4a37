"""``--log-level``: an option of all commands, in a module of its own, so that a list of commands
loads no other module for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, Final, Literal, get_type_hints

import typer

__all__ = ["LogLevel", "with_log_level"]

DEFAULT: Final = "warning"
NAME: Final = "log_level"
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"] | None,
    typer.Option(
        "--log-level",
        metavar="LEVEL",
        envvar="DSORT_LOG",
        help="Write log lines of this level and above to stderr: debug, info, warning or error.  "
        "[default: warning]",
        show_default=False,
    ),
]


def with_log_level(verb: Callable[..., None]) -> Callable[..., None]:
    """``verb`` with the option ``--log-level``, in front of ``--debug``; unchanged if it is a
    stand-in without parameters, or sets up its log itself."""
    parameters = [*signature(verb).parameters.values()]
    names = [each.name for each in parameters]
    if "debug" not in names or NAME in names:
        return verb
    hints = get_type_hints(verb, include_extras=True)
    parameters = [
        each.replace(annotation=hints[each.name], kind=Parameter.KEYWORD_ONLY)
        for each in parameters
    ]
    option = Parameter(NAME, Parameter.KEYWORD_ONLY, default=None, annotation=LogLevel)
    parameters.insert(names.index("debug"), option)

    @wraps(verb)
    def with_lines(**given: Any) -> None:
        from dsort.log_lines import lines_on_stderr

        with lines_on_stderr(given.pop(NAME) or DEFAULT):
            verb(**given)

    with_lines.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    with_lines.__annotations__ = {each.name: each.annotation for each in parameters}
    return with_lines
