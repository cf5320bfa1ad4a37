"""The steps ``map`` and ``flat_map``: a Python function of the user's makes new records."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge

from dsort.option_fields import OptionError, option
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

__all__ = ["FlatMap", "Map"]

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
        raise OptionError("has keys without {i}: all that becomes of a record has one key")
    return template


def _columns_option() -> Any:
    return option(
        dict[str, str],
        "From tables to tables, where it gets and returns rows as dicts of values: the types of "
        'columns that it adds or changes: `{score: float32, embedding: "list<float32>"}`.',
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
        "Named arguments: of a class when it is made, else of each call.",
        default={},
    )
    decode: dict[str, str] = option(
        dict[str, Decoder],
        "What is not to come as bytes: `{jpg: pil}`. Returned images, arrays and objects are "
        "encoded by their extension.",
        default={},
        check=lambda given: dict(sorted(given.items())),
    )
    drop: tuple[str, ...] = drop_option("Extensions that are left out of what it returns.")
    seed: str = option(
        str | int, "Another seed, another `rng`. Default: 0.", default="0", check=str
    )
    timeout: float = timeout_option(300.0, "For each call: `45s`, `5m` (default).")
    concurrency: int | None = concurrency_option(
        "Processes of this step in the whole job at most: a number, or [least, most]. Default: one "
        "for each worker."
    )
    resources: ResourceOptions | None = resources_option("What each of its processes has.")
    batch_size: int | None = option(
        Annotated[int, Ge(1)],
        "The function gets a list of so many samples (the last ones of a shard: fewer), and "
        "returns as many results. They must not depend on which samples come together.",
    )

    @property
    def limits(self) -> Limits:
        """Its limits of time, memory and processes."""
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
    """Makes one sample, or none, of each sample."""

    kind: ClassVar[str] = "map"
    summary: ClassVar[str] = (
        "Have a Python function make another record of each one: package.module:name."
    )

    columns: dict[str, str] | None = _columns_option()


class FlatMap(_Function, frozen=True):
    """Makes any number of samples of each sample."""

    kind: ClassVar[str] = "flat_map"
    summary: ClassVar[str] = "Have a Python function make any number of records of each one."

    keys: str = option(
        str,
        "Keys of what it returns, a list of samples: `{key}/{i:04d}`. Default: `{key}-{i}`. A "
        "sample with another `__key__` than it was given has that.",
        default="{key}-{i}",
        check=_keys,
    )
    columns: dict[str, str] | None = _columns_option()

    def program(self) -> dict[str, Any]:
        """See ``dsort.user_code.functions``."""
        return {**super().program(), "keys": self.keys}
