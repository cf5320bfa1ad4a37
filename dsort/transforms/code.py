"""The steps ``map`` and ``flat_map``: a Python function of the user's makes new records."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NotRequired

from annotated_types import Ge
from typing_extensions import TypedDict

from dsort.order.base import OptionError
from dsort.transforms.base import OPTIONS_CONFIG
from dsort.transforms.payload import (
    Concurrency,
    Limits,
    PayloadStep,
    ResourceOptions,
    parse_limits,
)

__all__ = ["FlatMap", "Map"]

TIMEOUT = "5m"
KEYS = "{key}-{i}"
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


class MapOptions(TypedDict):
    """What a spec gives for ``map``."""

    __pydantic_config__ = OPTIONS_CONFIG  # type: ignore[misc]

    python: str
    """The function, or class whose objects are called: `package.module:name`, or `file.py:name`.
    It gets a sample (a dict: `__key__`, and content by extension) and returns one, or None. A
    parameter `rng` gets a NumPy generator that depends on the seed, the step and the key alone."""
    args: NotRequired[dict[str, Any]]
    """Named arguments: of a class when it is made, else of each call."""
    decode: NotRequired[dict[str, Decoder]]
    """What is not to come as bytes: `{jpg: pil}`. Returned images, arrays and objects are encoded
    by their extension."""
    drop: NotRequired[list[str]]
    """Extensions that are left out of what it returns."""
    columns: NotRequired[dict[str, str]]
    """From tables to tables, where it gets and returns rows as dicts of values: the types of
    columns that it adds or changes: `{score: float32, embedding: "list<float32>"}`."""
    batch_size: NotRequired[Annotated[int, Ge(1)]]
    """The function gets a list of so many samples (the last ones of a shard: fewer), and returns as
    many results. They must not depend on which samples come together."""
    concurrency: NotRequired[Concurrency]
    """Processes of this step in the whole job at most: a number, or [least, most]. Default: one for
    each worker."""
    resources: NotRequired[ResourceOptions]
    """What each of its processes has."""
    timeout: NotRequired[float | str]
    """For each call: `45s`, `5m` (default)."""
    seed: NotRequired[str | int]
    """Another seed, another `rng`. Default: 0."""


class FlatMapOptions(MapOptions):
    """What a spec gives for ``flat_map``."""

    keys: NotRequired[str]
    """Keys of what it returns, a list of samples: `{key}/{i:04d}`. Default: `{key}-{i}`. A sample
    with another `__key__` than it was given has that."""


@dataclass(frozen=True, slots=True)
class Map(PayloadStep):
    """Makes one sample, or none, of each sample."""

    python: str
    args: dict[str, Any]
    decode: dict[str, str]
    drop: tuple[str, ...]
    batch_size: int | None
    seed: str
    limits: Limits
    keys: str | None = None
    columns: tuple[tuple[str, str], ...] = ()
    known: str = ""
    sources: str = ""

    kind: ClassVar[str] = "map"
    summary: ClassVar[str] = (
        "Have a Python function make another record of each one: package.module:name."
    )
    options_type: ClassVar[Any] = MapOptions

    @classmethod
    def of(cls, options: MapOptions) -> Map:
        """The step with these options."""
        return cls(**_common(options))

    @property
    def options(self) -> dict[str, Any]:
        """All of them."""
        found: dict[str, Any] = {
            "python": self.python,
            "args": self.args,
            "decode": self.decode,
            "drop": list(self.drop),
            "seed": self.seed,
            **self.limits.options(),
        }
        if self.batch_size is not None:
            found["batch_size"] = self.batch_size
        if self.keys is not None:
            found["keys"] = self.keys
        if self.columns:
            found["columns"] = dict(self.columns)
        return found

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
            "keys": self.keys,
            "memory_bytes": self.limits.memory_bytes,
            "wants_gpu": self.limits.gpus > 0,
        }


class FlatMap(Map):
    """Makes any number of samples of each sample."""

    __slots__ = ()

    kind: ClassVar[str] = "flat_map"
    summary: ClassVar[str] = "Have a Python function make any number of records of each one."
    options_type: ClassVar[Any] = FlatMapOptions

    @classmethod
    def of(cls, options: FlatMapOptions) -> FlatMap:  # type: ignore[override]
        """The step with these options."""
        keys = options.get("keys", KEYS)
        rest = _KEYS_PLACE.sub("", keys)
        if "{" in rest or "}" in rest:
            raise OptionError(
                f"has keys that are no template: {keys!r}", "there are {key}, {i:04d}"
            )
        if "{i" not in keys.replace("{{", ""):
            raise OptionError("has keys without {i}: all that becomes of a record has one key")
        return cls(**_common(options), keys=keys)


def _common(options: MapOptions) -> dict[str, Any]:
    place = options["python"]
    if not (_PLACE.fullmatch(place) or _FILE.fullmatch(place)):
        raise OptionError(
            f"has a python that names no function: {place!r}",
            "write package.module:name, or path/file.py:name",
        )
    return {
        "python": place,
        "args": dict(options.get("args", {})),
        "decode": dict(sorted(options.get("decode", {}).items())),
        "drop": tuple(options.get("drop", ())),
        "batch_size": options.get("batch_size"),
        "seed": str(options.get("seed", 0)),
        "limits": parse_limits(options, TIMEOUT),
        "columns": _columns(options.get("columns", {})),
    }


def _columns(given: dict[str, str]) -> tuple[tuple[str, str], ...]:
    for name, kind in given.items():
        if not _TYPE.fullmatch(kind):
            raise OptionError(
                f"has a column {name} of type {kind!r}",
                "there are bool, int8 to int64, uint8 to uint64, float16 to float64, string, "
                "binary, and lists of these: list<float32>",
            )
    return tuple(given.items())
