"""The tree of an expression."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

Value = None | bool | int | float | str | list["Value"] | dict[str, "Value"]

LeafKind = Literal[
    "key", "shard", "input", "ordinal", "total", "size", "has", "json", "int", "str", "number"
]

CONTENT: Final = ("json", "int", "str", "number")


class ExpressionError(ValueError):
    """A text is no expression, or not one of this kind. ``hint`` may be empty."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True, kw_only=True)
class _At:
    at: int = field(default=0, compare=False)  # the number of its first character in the text


@dataclass(frozen=True, slots=True)
class Constant(_At):
    """A value that is written in the text."""

    value: Value


@dataclass(frozen=True, slots=True)
class Name(_At):
    """A name: ``key``, or the variable of a quantifier."""

    name: str


@dataclass(frozen=True, slots=True)
class ListOf(_At):
    """``[a, b]``."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Operation(_At):
    """An operator with its operands; ``&&`` and ``||`` have two or more, ``?:`` three, and ``[]``
    a container and an index."""

    operator: str
    operands: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Select(_At):
    """``target.name``."""

    target: Node
    name: str


@dataclass(frozen=True, slots=True)
class Call(_At):
    """``name(arguments)``. The first argument of a method is the value that it is called on."""

    name: str
    arguments: tuple[Node, ...]
    is_method: bool = False


@dataclass(frozen=True, slots=True)
class HasField(_At):
    """``has(target.name)``; ``has(target)``, if there is no name."""

    target: Node
    name: str


@dataclass(frozen=True, slots=True)
class Quantified(_At):
    """``target.exists(variable, body)``, and so on."""

    kind: str
    target: Node
    variable: str
    body: Node


@dataclass(frozen=True, slots=True)
class Leaf(_At):
    """A fact of a record, from the index or from a member. ``extensions``: the member is the first
    one of these that the record has."""

    kind: LeafKind
    extensions: tuple[str, ...] = ()

    @property
    def is_content(self) -> bool:
        """Whether a member has to be read for it."""
        return self.kind in CONTENT

    def __str__(self) -> str:
        name = {"json": "ext", "int": "ext", "str": "ext"}.get(self.kind, self.kind)
        return f'{name}("{";".join(self.extensions)}")' if self.extensions else name


Node = Constant | Name | ListOf | Operation | Select | Call | HasField | Quantified | Leaf


def nodes_of(node: Node) -> Iterator[Node]:
    """``node`` and all nodes below it."""
    yield node
    for child in children(node):
        yield from nodes_of(child)


def children(node: Node) -> tuple[Node, ...]:
    """The nodes directly below ``node``."""
    match node:
        case ListOf(items):
            return items
        case Operation(_, operands):
            return operands
        case Call(_, arguments):
            return arguments
        case Select(target) | HasField(target):
            return (target,)
        case Quantified(_, target, _, body):
            return (target, body)
        case _:
            return ()
