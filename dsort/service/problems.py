"""Problem documents (RFC 9457): errors in JSON, with the same texts as on the command line.

This module imports no HTTP library, because job processes write problems too.
"""

from __future__ import annotations

import re
from typing import Any

from dsort.errors import DsortError, JobStoppedError, SpecError, TooManyRequestsError
from dsort.log_lines import one_sentence

PROBLEM_JSON = "application/problem+json"
PROBLEMS_MAX = 100


def problem(kind: str, status: int, detail: str, *, title: str = "", **more: Any) -> dict[str, Any]:
    """A problem document of kind ``kind`` (snake case)."""
    words = title or kind.replace("_", " ").capitalize()
    document = {"type": f"urn:dsort:problem:{kind}", "title": words, "status": status}
    return {**document, "detail": detail, **more}


def problem_of(error: DsortError, **more: Any) -> dict[str, Any]:
    """The document of an error, with the fields that the command line shows: ``detail``, ``hint``,
    ``exit_code``, and for a spec all ``problems``."""
    exit_code = error.exit_code
    if isinstance(error, JobStoppedError):
        exit_code = 128 + error.signal_number
    detail = one_sentence(error.message)  # the place in the code is only for the log
    document = problem(kind_of(error), error.http_status, detail, hint=error.hint)
    document["exit_code"] = exit_code
    if isinstance(error, SpecError):
        shown = error.problems[:PROBLEMS_MAX]
        document["problems"] = [
            {"path": each.path, "message": each.message, "hint": each.hint} for each in shown
        ]
        if len(error.problems) > 1:
            document["detail"] = f"{len(error.problems)} problems: " + "; ".join(map(str, shown))
    if isinstance(error, TooManyRequestsError):
        document["retry_after_s"] = error.retry_after_s
    return {**document, **more}


def kind_of(error: DsortError) -> str:
    """The kind of an error: ``SpecError`` is ``spec``, ``CorruptShardError`` is
    ``corrupt_shard``."""
    name = type(error).__name__.removesuffix("Error")
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
