"""How a command ends: exit codes, and errors as texts. The classes of errors define the exit
codes."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Sequence
from types import TracebackType

from dsort.cli import output
from dsort.errors import DsortError, InvariantError, JobStoppedError, SpecError

BUG_HINT = (
    "this is a bug of dsort, not a mistake of yours: please report it, "
    "with what `--debug` adds to this message"
)


def exit_code(error: DsortError) -> int:
    """The exit code of a process that ends with ``error``."""
    if isinstance(error, JobStoppedError):
        return 128 + error.signal_number
    return error.exit_code


def exit_table() -> list[tuple[str, str]]:
    """All exit codes with their meanings, taken from the error tree."""
    rows = {"0": "done"}
    for kind in sorted(DsortError.__subclasses__(), key=lambda kind: kind.exit_code):
        code = "129, 130, 143" if kind is JobStoppedError else str(kind.exit_code)
        meaning = " ".join((kind.__doc__ or kind.__name__).split()).partition(". ")[0].rstrip(".")
        meaning = meaning[0].lower() + meaning[1:]
        rows[code] = f"{rows[code]}; or {meaning}" if code in rows else meaning
    return list(rows.items())


def report_error(error: DsortError, *, as_json: bool, debug: bool) -> int:
    """Print ``error`` for the user, and return the exit code."""
    if debug:
        output.inform("".join(traceback.format_exception(error)).rstrip())
    problems = error.problems if isinstance(error, SpecError) else ()
    if len(problems) > 1:
        output.inform(f"error: {len(problems)} problems:")
        for problem in problems:
            output.inform(f"  {problem}")
            if problem.hint:
                output.inform(f"    hint: {problem.hint}")
    else:
        output.inform(_indented(f"error: {_short(error, debug)}"))
    hints = [error.hint] if error.hint else []
    if isinstance(error, InvariantError):
        hints.append(BUG_HINT)
    for hint in hints:
        output.inform(_indented(f"hint: {hint}"))
    code = exit_code(error)
    if as_json:
        details = [
            {"path": each.path, "message": each.message, "hint": each.hint} for each in problems
        ]
        _write_error(type(error).__name__, code, error.message, " ".join(hints), details)
    return code


def report_usage(message: str, *, command: str, hint: str, as_json: bool) -> int:
    """Print a mistake in the command line, and return the exit code."""
    message = message.replace(": Value error, ", ": ").rstrip(".")
    if message.startswith("Usage: "):  # a group without a verb: its help lists the verbs
        output.inform(message)
        message = f"`{command}` needs a command"
    message = re.sub(r"\s*\n\t", " ", message)  # click puts each choice into a line of its own
    message = message[:1].lower() + message[1:]
    output.inform(f"error: {message}")
    output.inform(f"hint: {hint}")
    if as_json:
        _write_error("UsageError", SpecError.exit_code, message, hint, [])
    return SpecError.exit_code


def report_bug(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print an unexpected exception. Fits ``sys.excepthook``: the process then ends
    with 1."""
    if "--debug" in sys.argv:
        output.inform("".join(traceback.format_exception(kind, error, trace)).rstrip())
    last = traceback.extract_tb(trace)[-1:] if trace else []
    where = f" ({last[0].name}, line {last[0].lineno})" if last else ""
    message = f"dsort failed unexpectedly: {kind.__name__}: {error}{where}"
    output.inform(f"error: {message}")
    output.inform(f"hint: {BUG_HINT}")
    if "--json" in sys.argv:
        _write_error(kind.__name__, InvariantError.exit_code, message, BUG_HINT, [])


def _indented(text: str) -> str:
    """``text`` with its later lines indented. A name in a bucket may have several lines, and none
    of them may look like a line of dsort's own."""
    return text.replace("\n", "\n  ")


def _short(error: DsortError, debug: bool) -> str:
    """The message of ``error``. Without ``debug``, a message with a traceback is cut to its first
    and last lines, which have the reason."""
    lines = error.message.strip().splitlines()
    if debug or not isinstance(error, InvariantError) or len(lines) < 2:
        return error.message
    return f"{lines[0]} {lines[-1]}"


def _write_error(kind: str, code: int, message: str, hint: str, problems: Sequence[object]) -> None:
    error: dict[str, object] = {
        "kind": kind,
        "exit_code": code,
        "message": message,
        "hint": hint,
    }
    if problems:
        error["problems"] = problems
    output.write_json({"error": error})
