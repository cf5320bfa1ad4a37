"""The steps ``exec`` and ``http``: a program or a server of the user's makes new records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NotRequired
from urllib.parse import urlsplit

from annotated_types import Ge, MinLen
from typing_extensions import TypedDict

from dsort.order.base import OptionError
from dsort.transforms.base import OPTIONS_CONFIG
from dsort.transforms.fields import check_extension
from dsort.transforms.payload import (
    Concurrency,
    Limits,
    PayloadStep,
    ResourceOptions,
    parse_limits,
)

__all__ = ["Exec", "Http"]

TIMEOUT = "45s"
GRACE_S = 10.0
BATCH_RECORDS = 256


class ExecOptions(TypedDict):
    """What a spec gives for ``exec``."""

    __pydantic_config__ = OPTIONS_CONFIG  # type: ignore[misc]

    command: Annotated[list[str], MinLen(1)]
    """The program and its arguments, for no shell: `["ffmpeg", "-i", "$IN/flac", "$OUT/wav"]`.
    `$IN`, `$OUT`, `$KEY` stand for two directories and the record's key; `$$` is a dollar."""
    protocol: NotRequired[Literal["files", "tar"]]
    """files (default): it runs once for each record, whose members are files in `$IN`, named by
    their extension. Files that it leaves in `$OUT` join the record, or replace members. tar: it
    gets many records as a tar on standard input, and writes those that it makes of them as one."""
    drop: NotRequired[list[str]]
    """Extensions that are left out of what it makes."""
    batch_size: NotRequired[Annotated[int, Ge(1)]]
    """With `protocol: tar`: so many records at most for each start. Default: 256."""
    concurrency: NotRequired[Concurrency]
    """Programs at a time in the whole job at most: a number, or [least, most]. Default: one for
    each worker."""
    resources: NotRequired[ResourceOptions]
    """What each has."""
    timeout: NotRequired[float | str]
    """For each record; with `protocol: tar`, as long as nothing moves. `45s` is the default."""


class HttpOptions(TypedDict):
    """What a spec gives for ``http``."""

    __pydantic_config__ = OPTIONS_CONFIG  # type: ignore[misc]

    url: str
    """Of a server that takes content by PUT and answers with what became of it: an AIStore ETL
    container, as it is."""
    protocol: NotRequired[Literal["hpush"]]
    """hpush, as AIStore calls it."""
    members: NotRequired[dict[str, str]]
    """Members that are sent, and what each becomes: `{jpg: npy}`. Default: the whole record is sent
    as a tar, and the answer is a tar of one record or several."""
    args: NotRequired[str]
    """Sent along as `?etl_args=`."""
    drop: NotRequired[list[str]]
    """Extensions that are left out of what it makes."""
    concurrency: NotRequired[Concurrency]
    """Requests at a time in the whole job at most. Default: one for each worker."""
    timeout: NotRequired[float | str]
    """For each request: `45s` (default)."""


@dataclass(frozen=True, slots=True)
class Exec(PayloadStep):
    """Runs ``command``."""

    command: tuple[str, ...]
    protocol: str
    drop: tuple[str, ...]
    batch_size: int
    limits: Limits
    known: str = ""
    sources: str = ""

    kind: ClassVar[str] = "exec"
    summary: ClassVar[str] = "Have a program make other records."
    options_type: ClassVar[Any] = ExecOptions

    @classmethod
    def of(cls, options: ExecOptions) -> Exec:
        """The step with these options."""
        if any("\0" in each for each in options["command"]) or not options["command"][0]:
            raise OptionError("has an invalid command")
        protocol = options.get("protocol", "files")
        if protocol == "files" and "batch_size" in options:
            raise OptionError("has a batch_size, which goes with protocol: tar")
        return cls(
            tuple(options["command"]),
            protocol,
            tuple(options.get("drop", ())),
            options.get("batch_size", BATCH_RECORDS) if protocol == "tar" else 1,
            parse_limits(options, TIMEOUT),
        )

    @property
    def options(self) -> dict[str, Any]:
        """All of them."""
        found: dict[str, Any] = {
            "command": list(self.command),
            "protocol": self.protocol,
            "drop": list(self.drop),
            **self.limits.options(),
        }
        return found if self.protocol == "files" else {**found, "batch_size": self.batch_size}

    @property
    def batch_records(self) -> int:
        """The number of records that it takes at a time."""
        return self.batch_size

    @property
    def patience_s(self) -> float:
        """The longest time in seconds for a batch: if a program fails at several records, each half
        of them is tried again, down to single records."""
        return self.limits.timeout_s * 2 * self.batch_size + GRACE_S

    def program(self) -> dict[str, Any]:
        """See ``dsort.user_code.programs``."""
        return {
            "kind": self.protocol,
            "command": list(self.command),
            "drop": list(self.drop),
            "batch_size": self.batch_size,
            "timeout_s": self.limits.timeout_s,
            "memory_bytes": self.limits.memory_bytes,
        }


@dataclass(frozen=True, slots=True)
class Http(PayloadStep):
    """Sends records to ``url``."""

    url: str
    members: tuple[tuple[str, str], ...] | None
    args: str
    drop: tuple[str, ...]
    limits: Limits
    known: str = ""
    sources: str = ""

    kind: ClassVar[str] = "http"
    summary: ClassVar[str] = (
        "Have a server make other members or records: an AIStore ETL container."
    )
    options_type: ClassVar[Any] = HttpOptions

    @classmethod
    def of(cls, options: HttpOptions) -> Http:
        """The step with these options."""
        url = options["url"]
        try:
            parts = urlsplit(url)
            is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_url = False
        if not is_url or not url.isascii() or not url.isprintable() or " " in url:
            raise OptionError(f"has an invalid url: {url!r}", "e.g. http://127.0.0.1:8000")
        members = options.get("members")
        for extension in [*(members or {}), *(members or {}).values()]:
            check_extension(extension)
        return cls(
            url,
            None if members is None else tuple(members.items()),
            options.get("args", ""),
            tuple(options.get("drop", ())),
            parse_limits(options, TIMEOUT),
        )

    @property
    def options(self) -> dict[str, Any]:
        """All of them."""
        sent = {} if self.members is None else {"members": dict(self.members)}
        return {
            "url": self.url,
            "protocol": "hpush",
            **sent,
            "args": self.args,
            "drop": list(self.drop),
            **self.limits.options(),
        }

    @property
    def patience_s(self) -> float:
        """The longest time in seconds for a record: each member is sent by itself."""
        return self.limits.timeout_s * max(1, len(self.members or ())) + GRACE_S

    def program(self) -> dict[str, Any]:
        """See ``dsort.user_code.requests``."""
        return {
            "kind": "push",
            "url": self.url,
            "members": None if self.members is None else dict(self.members),
            "args": self.args,
            "drop": list(self.drop),
            "timeout_s": self.limits.timeout_s,
            "memory_bytes": 0,
        }
