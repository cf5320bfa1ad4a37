"""The contract of runners, which run in a process of user code, and the rules for their results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from dsort.user_code.frames import Sample

__all__ = ["BadResultError", "Outcome", "Runner", "check_extension", "check_key", "said_briefly"]

Outcome = list[Sample] | str
"""The records that a record became, none to many; or why it failed."""

TEXT_MAX = 300


class BadResultError(ValueError):
    """A result that is not a valid record."""


class Runner(ABC):
    """Does one step on records."""

    batch_size = 1
    """How many records a runner receives at a time, at most."""

    @abstractmethod
    def run(self, samples: Sequence[Sample]) -> list[Outcome]:
        """The outcome of each of ``samples``. Errors are texts of the outcomes."""

    def one(self, sample: Sample) -> Outcome:
        """The outcome of one record, if ``batch_size`` is 1."""
        return self.run([sample])[0]

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Release its resources."""

    def sources(self) -> dict[str, str]:
        """The hash of each file that defines its work, by a name that is the same on all
        machines."""
        return {}

    def description(self) -> dict[str, object]:
        """The properties that distinguish two runners whose results may differ, in JSON types."""
        return {}


def check_key(key: object) -> None:
    """``BadResultError`` unless a record can have this key: an invalid key would make its members
    parts of another record, or be unpacked outside of the directory."""
    if not isinstance(key, str):
        raise BadResultError(f"its __key__ is a {type(key).__name__}, and no text")
    base = key.rpartition("/")[2]
    problem = "" if base else "has no name behind its last slash"
    if "." in base:
        problem = "has a dot, behind which its extension would begin"
    if key.startswith("/") or ".." in key.split("/"):
        problem = "leads out of the directory that it is unpacked in"
    if "\0" in key:
        problem = "has a zero byte in it"
    if problem or not _is_name(key):
        problem = problem or "is no text that a name can be"
        raise BadResultError(f"its key {said_briefly(repr(key))} {problem}")


def check_extension(extension: object) -> None:
    """``BadResultError`` unless a member can have this extension."""
    if not isinstance(extension, str):
        raise BadResultError(f"it has a member {said_briefly(repr(extension))}, which is no text")
    if (
        set(extension) & set("/\0\n\r")
        or extension.startswith(".")
        or not extension
        or not _is_name(extension)
    ):
        shown = said_briefly(repr(extension))
        raise BadResultError(f"it has a member {shown}, which is no extension: jpg, seg.png")


def _is_name(text: str) -> bool:
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def said_briefly(text: str) -> str:
    """``text`` in one line of bounded length."""
    line = " ".join(text.split())
    return line if len(line) <= TEXT_MAX else line[: TEXT_MAX - 1] + "…"
