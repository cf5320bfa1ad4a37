"""The steps that make new records with a user's code: a program (``exec``), a server (``http``), or
a function of Python (``map``, ``flat_map``)."""

from __future__ import annotations

import re
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

TIMEOUT_S = 45.0
GRACE_S = 10.0
BATCH_RECORDS = 256


def _command(words: Sequence[str]) -> tuple[str, ...]:
    if any("\0" in each for each in words) or not words[0]:
        raise OptionError("has an invalid command")
    return tuple(words)


def _one_record_for_files(options: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    if options["protocol"] == "files" and options["batch_size"] is not None:
        yield "", "has a batch_size, which needs protocol: tar", ""


class Exec(PayloadStep, frozen=True):
    """Runs ``command``."""

    kind: ClassVar[str] = "exec"
    summary: ClassVar[str] = "Run a program that makes other records."
    checks: ClassVar[tuple[Check, ...]] = (
        Check(("protocol", "batch_size"), _one_record_for_files),
    )

    command: tuple[str, ...] = option(
        Annotated[list[str], MinLen(1)],
        'The program and its arguments, without a shell: `["ffmpeg", "-i", "$IN/flac", '
        '"$OUT/wav"]`. `$IN`, `$OUT`, `$KEY` stand for two directories and the record\'s key; '
        "`$$` is a dollar.",
        check=_command,
        required="the program and its arguments",
    )
    protocol: str = option(
        Literal["files", "tar"],
        "files (default): it runs once for each record, whose members are files in `$IN`, named "
        "by their extension. Files that it leaves in `$OUT` join the record, or replace members. "
        "tar: it gets many records as a tar on standard input, and writes the records that it "
        "makes as a tar to standard output.",
        default="files",
    )
    drop: tuple[str, ...] = drop_option()
    timeout: float = timeout_option(
        TIMEOUT_S,
        "The time limit for each record; with `protocol: tar`, for each pause of its input and "
        "output. Default: `45s`.",
    )
    concurrency: int | None = concurrency_option(
        "The most programs at a time in the whole job: a number, or [least, most]. Default: one "
        "for each worker."
    )
    resources: ResourceOptions | None = resources_option("The resources of each program.")
    batch_size: int | None = option(
        Annotated[int, Ge(1)],
        "With `protocol: tar`: the most records for each start of the program. Default: 256.",
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
        """The limits of the step: time, memory and processes."""
        return limits_of(self.timeout, self.concurrency, self.resources)

    @property
    def batch_records(self) -> int:
        """The number of records that it takes at a time."""
        return self.batch_size or 1

    @property
    def patience_s(self) -> float:
        """The longest time in seconds for a batch. If a program fails at a batch, each half of it
        is tried again, down to single records."""
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
        "Send records to a server that makes other members or records: an AIStore ETL container."
    )

    url: str = option(
        str,
        "The URL of a server that receives content by PUT and answers with the result, such as an "
        "AIStore ETL container.",
        check=_url,
        required="http://127.0.0.1:8000",
    )
    protocol: str = option(Literal["hpush"], "hpush, as AIStore calls it.", default="hpush")
    members: dict[str, str] | None = option(
        dict[str, str],
        "The extensions of members that are sent, each with the extension of its result: "
        "`{jpg: npy}`. Default: the whole record is sent as a tar, and the answer is a tar of one "
        "record or several.",
        check=_members,
    )
    args: str = option(str, "The text that each URL contains as `?etl_args=`.", default="")
    drop: tuple[str, ...] = drop_option()
    timeout: float = timeout_option(TIMEOUT_S, "The time limit for each request. Default: `45s`.")
    concurrency: int | None = concurrency_option(
        "The most requests at a time in the whole job. Default: one for each worker."
    )

    @property
    def limits(self) -> Limits:
        """The limits of the step: time and processes."""
        return limits_of(self.timeout, self.concurrency, None)

    @property
    def patience_s(self) -> float:
        """The longest time in seconds for a record, whose members are sent one by one."""
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


_PLACE = re.compile(r"(?:[^\W\d]\w*\.)*[^\W\d]\w*:(?:[^\W\d]\w*\.)*[^\W\d]\w*")
_FILE = re.compile(r"[^:\0]+\.py:[^\W\d]\w*")
_KEYS_PLACE = re.compile(r"\{key\}|\{i(?::0?\d{1,2}d)?\}|\{\{|\}\}")

_TYPE = re.compile(
    r"(?P<list>list<)?(bool|u?int(8|16|32|64)|float(16|32|64)|string|binary)(?(list)>)"
)

Decoder = Literal[
    "bool",
    "bytes",
    "float",
    "int",
    "json",
    "npy",
    "npz",
    "pil",
    "pilrgb",
    "rgb",
    "rgb8",
    "torchrgb",
    "txt",
]


def _place(text: str) -> str:
    if not (_PLACE.fullmatch(text) or _FILE.fullmatch(text)):
        raise OptionError(
            f"has a python that names no function: {text!r}",
            "write package.module:name, or path/file.py:name",
        )
    return text


def _columns(given: Mapping[str, str]) -> Mapping[str, str] | None:
    for name, kind in given.items():
        if not _TYPE.fullmatch(kind):
            raise OptionError(
                f"has a column {name} of type {kind!r}",
                "there are bool, int8 to int64, uint8 to uint64, float16 to float64, string, "
                "binary, and lists of these: list<float32>",
            )
    return given or None


def _keys(template: str) -> str:
    rest = _KEYS_PLACE.sub("", template)
    if "{" in rest or "}" in rest:
        raise OptionError(
            f"has keys that are no template: {template!r}", "there are {key}, {i:04d}"
        )
    if "{i" not in template.replace("{{", ""):
        raise OptionError("has keys without {i}: all records made from one record have one key")
    return template


def _columns_option() -> Any:
    return option(
        dict[str, str],
        "If rows of tables stay rows, the types of the columns that the function adds or changes: "
        '`{score: float32, embedding: "list<float32>"}`. It gets and returns rows as dicts of '
        "values.",
        check=_columns,
    )


class _Function(PayloadStep, frozen=True):
    """Calls a Python function."""

    python: str = option(
        str,
        "The function, or class whose objects are called: `package.module:name`, or "
        "`file.py:name`. It gets a sample (a dict: `__key__`, and content by extension) and "
        "returns one, or None. A parameter `rng` gets a NumPy generator that depends on the seed, "
        "the step and the key alone.",
        check=_place,
        required="package.module:name, or file.py:name",
    )
    args: dict[str, Any] = option(
        dict[str, Any],
        "Named arguments: for a class when an object is made, for a function in each call.",
        default={},
    )
    decode: dict[str, str] = option(
        dict[str, Decoder],
        "The decoders of members that the function does not get as bytes: `{jpg: pil}`. Returned "
        "images, arrays and objects are encoded by their extension.",
        default={},
        check=lambda given: dict(sorted(given.items())),
    )
    drop: tuple[str, ...] = drop_option(
        "Extensions of members that are left out of returned samples."
    )
    seed: str = option(
        str | int, "Another seed gives another `rng`. Default: 0.", default="0", check=str
    )
    timeout: float = timeout_option(
        300.0, "The time limit for each call, such as `45s`. Default: `5m`."
    )
    concurrency: int | None = concurrency_option(
        "The most processes of this step in the whole job: a number, or [least, most]. Default: "
        "one for each worker."
    )
    resources: ResourceOptions | None = resources_option("The resources of each process.")
    batch_size: int | None = option(
        Annotated[int, Ge(1)],
        "The function gets a list of this many samples (fewer at the end of a shard), and returns "
        "as many results. A result must not depend on the other samples of the list.",
    )

    @property
    def limits(self) -> Limits:
        """The limits of the step: time, memory and processes."""
        return limits_of(self.timeout, self.concurrency, self.resources)

    @property
    def batch_records(self) -> int:
        """The number of records that it takes at a time."""
        return self.batch_size or 1

    def program(self) -> dict[str, Any]:
        """See ``dsort.user_code.functions``."""
        return {
            "kind": "function",
            "python": self.python,
            "args": self.args,
            "decode": self.decode,
            "drop": list(self.drop),
            "batch_size": self.batch_size,
            "seed": self.seed,
            "keys": None,
            "memory_bytes": self.limits.memory_bytes,
            "wants_gpu": self.limits.gpus > 0,
        }


class Map(_Function, frozen=True):
    """Makes at most one sample from each sample."""

    kind: ClassVar[str] = "map"
    summary: ClassVar[str] = (
        "Call a Python function that makes another record of each record: package.module:name."
    )

    columns: dict[str, str] | None = _columns_option()


class FlatMap(_Function, frozen=True):
    """Makes any number of samples from each sample."""

    kind: ClassVar[str] = "flat_map"
    summary: ClassVar[str] = (
        "Call a Python function that makes any number of records of each record."
    )

    keys: str = option(
        str,
        "The template of the keys of the returned samples: `{key}/{i:04d}`. Default: `{key}-{i}`. "
        "A returned sample with another `__key__` than the given sample keeps its `__key__`.",
        default="{key}-{i}",
        check=_keys,
    )
    columns: dict[str, str] | None = _columns_option()

    def program(self) -> dict[str, Any]:
        """See ``dsort.user_code.functions``."""
        return {**super().program(), "keys": self.keys}
