"""The steps ``exec`` and ``http``: a program or a server of the user's makes new records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self
from urllib.parse import urlsplit

from annotated_types import Ge, MinLen
from msgspec.structs import replace

from dsort.option_fields import Check, OptionError, option
from dsort.transforms.fields import check_extension
from dsort.transforms.payload import (
    Limits,
    PayloadStep,
    ResourceOptions,
    concurrency_option,
    drop_option,
    limits_of,
    resources_option,
    timeout_option,
)

__all__ = ["Exec", "Http"]

TIMEOUT_S = 45.0
GRACE_S = 10.0
BATCH_RECORDS = 256


def _command(words: Sequence[str]) -> tuple[str, ...]:
    if any("\0" in each for each in words) or not words[0]:
        raise OptionError("has an invalid command")
    return tuple(words)


def _one_record_for_files(options: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    if options["protocol"] == "files" and options["batch_size"] is not None:
        yield "", "has a batch_size, which goes with protocol: tar", ""


class Exec(PayloadStep, frozen=True):
    """Runs ``command``."""

    kind: ClassVar[str] = "exec"
    summary: ClassVar[str] = "Have a program make other records."
    checks: ClassVar[tuple[Check, ...]] = (
        Check(("protocol", "batch_size"), _one_record_for_files),
    )

    command: tuple[str, ...] = option(
        Annotated[list[str], MinLen(1)],
        'The program and its arguments, for no shell: `["ffmpeg", "-i", "$IN/flac", '
        '"$OUT/wav"]`. `$IN`, `$OUT`, `$KEY` stand for two directories and the record\'s key; '
        "`$$` is a dollar.",
        check=_command,
        required="the program and its arguments",
    )
    protocol: str = option(
        Literal["files", "tar"],
        "files (default): it runs once for each record, whose members are files in `$IN`, named "
        "by their extension. Files that it leaves in `$OUT` join the record, or replace members. "
        "tar: it gets many records as a tar on standard input, and writes those that it makes of "
        "them as one.",
        default="files",
    )
    drop: tuple[str, ...] = drop_option()
    timeout: float = timeout_option(
        TIMEOUT_S,
        "For each record; with `protocol: tar`, as long as nothing moves. `45s` is the default.",
    )
    concurrency: int | None = concurrency_option(
        "Programs at a time in the whole job at most: a number, or [least, most]. Default: one for "
        "each worker."
    )
    resources: ResourceOptions | None = resources_option("What each has.")
    batch_size: int | None = option(
        Annotated[int, Ge(1)],
        "With `protocol: tar`: so many records at most for each start. Default: 256.",
    )

    @classmethod
    def of(cls, options: Any) -> Self:
        """The step with these options; the size of a batch depends on the protocol."""
        made = super().of(options)
        if made.protocol == "files" or made.batch_size is not None:
            return made
        return replace(made, batch_size=BATCH_RECORDS)

    @property
    def limits(self) -> Limits:
        """Its limits of time, memory and processes."""
        return limits_of(self.timeout, self.concurrency, self.resources)

    @property
    def batch_records(self) -> int:
        """The number of records that it takes at a time."""
        return self.batch_size or 1

    @property
    def patience_s(self) -> float:
        """The longest time in seconds for a batch: if a program fails at several records, each half
        of them is tried again, down to single records."""
        return self.timeout * 2 * self.batch_records + GRACE_S

    def program(self) -> dict[str, Any]:
        """See ``dsort.user_code.programs``."""
        return {
            "kind": self.protocol,
            "command": list(self.command),
            "drop": list(self.drop),
            "batch_size": self.batch_records,
            "timeout_s": self.timeout,
            "memory_bytes": self.limits.memory_bytes,
        }


def _url(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url or not url.isascii() or not url.isprintable() or " " in url:
        raise OptionError(f"has an invalid url: {url!r}", "e.g. http://127.0.0.1:8000")
    return url


def _members(given: Mapping[str, str]) -> Mapping[str, str]:
    for extension in (*given, *given.values()):
        check_extension(extension)
    return given


class Http(PayloadStep, frozen=True):
    """Sends records to ``url``."""

    kind: ClassVar[str] = "http"
    summary: ClassVar[str] = (
        "Have a server make other members or records: an AIStore ETL container."
    )

    url: str = option(
        str,
        "Of a server that takes content by PUT and answers with what became of it: an AIStore ETL "
        "container, as it is.",
        check=_url,
        required="http://127.0.0.1:8000",
    )
    protocol: str = option(Literal["hpush"], "hpush, as AIStore calls it.", default="hpush")
    members: dict[str, str] | None = option(
        dict[str, str],
        "Members that are sent, and what each becomes: `{jpg: npy}`. Default: the whole record is "
        "sent as a tar, and the answer is a tar of one record or several.",
        check=_members,
    )
    args: str = option(str, "Sent along as `?etl_args=`.", default="")
    drop: tuple[str, ...] = drop_option()
    timeout: float = timeout_option(TIMEOUT_S, "For each request: `45s` (default).")
    concurrency: int | None = concurrency_option(
        "Requests at a time in the whole job at most. Default: one for each worker."
    )

    @property
    def limits(self) -> Limits:
        """Its limits of time and processes."""
        return limits_of(self.timeout, self.concurrency, None)

    @property
    def patience_s(self) -> float:
        """The longest time in seconds for a record: each member is sent by itself."""
        return self.timeout * max(1, len(self.members or ())) + GRACE_S

    def program(self) -> dict[str, Any]:
        """See ``dsort.user_code.requests``."""
        return {
            "kind": "push",
            "url": self.url,
            "members": self.members,
            "args": self.args,
            "drop": list(self.drop),
            "timeout_s": self.timeout,
            "memory_bytes": 0,
        }
