"""All algorithms, by kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dsort.order.base import Algorithm
from dsort.order.by_key import Alphanumeric, InputOrder, Keys, Md5
from dsort.order.content import Content
from dsort.order.shuffle import Shuffle
from dsort.order.value import Value
from dsort.registry import Registry

BUILT_IN: Final[tuple[type[Algorithm], ...]] = (
    InputOrder,
    Alphanumeric,
    Shuffle,
    Md5,
    Content,
    Keys,
    Value,
)

ALGORITHMS: Final[Registry[type[Algorithm]]] = Registry(
    "dsort.algorithms", lambda each: (each.kind,), BUILT_IN
)

DEFAULT_KIND: Final = Alphanumeric.kind


def register(algorithm: type[Algorithm]) -> None:
    """Add an algorithm, which specs that are read from now on may name. Worker processes have to be
    able to import its module. ``ValueError`` if its kind exists already. A package names its
    algorithms in the entry points ``dsort.algorithms`` instead."""
    ALGORITHMS.register(algorithm)


def is_random(kind: object) -> bool:
    """Whether algorithms of this kind shuffle; False for an unknown kind."""
    known = ALGORITHMS.get(kind) if isinstance(kind, str) else None
    return known is not None and known.is_random


def takes_seed(algorithm: object) -> bool:
    """Whether the order depends on a seed. ``algorithm``: the fields of an algorithm in a spec;
    False if it is no algorithm at all."""
    if not isinstance(algorithm, Mapping):
        return False
    keys = algorithm.get("keys")
    among_keys = isinstance(keys, (list, tuple)) and any(map(takes_seed, keys))
    return among_keys or is_random(algorithm.get("kind"))
