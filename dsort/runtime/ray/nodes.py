"""Which nodes of a cluster may host workers, and how many."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dsort.errors import SpecError
from dsort.runtime.ray.messages import node_words

__all__ = ["Needs", "words_of"]

Node = Mapping[str, Any]
"""A row of ``ray.nodes()``."""

_ONE_OF = re.compile(r"in\((.*)\)")


@dataclass(frozen=True, slots=True)
class Needs:
    """What a worker needs of its node besides a CPU.

    ``resources``: custom resources that it takes. ``labels``: a label selector of Ray: a value is
    ``x``, ``!x``, ``in(x, y)`` or ``!in(x, y)``.
    """

    resources: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, amount in self.resources.items():
            if not amount > 0 or name in ("", "CPU", "GPU", "memory", "object_store_memory"):
                raise SpecError(
                    f"--ray-resources: {name!r}: {amount} is no custom resource of a node",
                    hint="a worker takes one CPU; name what the nodes were given besides, and how "
                    "much of it a worker takes",
                )

    def __bool__(self) -> bool:
        return bool(self.resources or self.labels)

    def __str__(self) -> str:
        needed = [f"{amount:g} of {name}" for name, amount in sorted(self.resources.items())]
        needed += [f"label {key}={value}" for key, value in sorted(self.labels.items())]
        return ", ".join(["one CPU", *needed])

    def workers(self, node: Node) -> int:
        """How many workers ``node`` can host when it has nothing else to do."""
        if not node["Alive"]:
            return 0
        labels = node.get("Labels") or {}
        if not all(_selects(value, labels.get(key)) for key, value in self.labels.items()):
            return 0
        there = node["Resources"]
        rooms = [there.get(name, 0) // amount for name, amount in self.resources.items()]
        return int(min([there.get("CPU", 0), *rooms]))

    def hosts(self, nodes: Iterable[Node]) -> list[Node]:
        """Those of ``nodes`` that can host a worker."""
        return [node for node in nodes if self.workers(node) > 0]


def words_of(node: Node) -> str:
    """A node in words."""
    return node_words(node["NodeManagerHostname"], node["NodeManagerAddress"], node["NodeID"])


def _selects(wanted: str, value: str | None) -> bool:
    """Whether a node whose label is ``value`` (None: it has none) is what a selector asks for."""
    positive = wanted.removeprefix("!")
    several = _ONE_OF.fullmatch(positive)
    values = [each.strip() for each in several[1].split(",")] if several else [positive]
    return (value in values) == (positive == wanted)
