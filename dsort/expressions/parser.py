"""The tree of an expression, and the parser that makes the tree from a text.

The grammar is that of CEL without the parts that no filter needs (bytes, unsigned numbers, maps and
messages). In addition to CEL, digits may be grouped: ``5_000_000``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal

from msgspec import Struct

from dsort.naming.names import shortened
from dsort.option_fields import OptionError

Value = None | bool | int | float | str | list["Value"] | dict[str, "Value"]

LeafKind = Literal[
    "key", "shard", "input", "ordinal", "total", "size", "has", "json", "int", "str", "number"
]

CONTENT: Final = ("json", "int", "str", "number")


class ExpressionError(OptionError):
    """A text is no expression, or no expression of the wanted type."""


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
    """A fact of a record, from the index or from a member. ``extensions``: the alternative
    extensions of the member; the first of them that the record has counts."""

    kind: LeafKind
    extensions: tuple[str, ...] = ()

    @property
    def is_content(self) -> bool:
        """Whether a member has to be read for this fact."""
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


TEXT_MAX: Final = 4096
"""The maximum number of characters of an expression."""
DEPTH_MAX: Final = 32
"""How deep the parts of an expression may be nested, because recursion walks the tree."""

_DIGITS: Final = r"[0-9](?:_?[0-9])*"
_TOKEN: Final = re.compile(
    rf"""(?P<space>(?:[ \t\r\n\f]+|//[^\n]*)+)
    |(?P<float>{_DIGITS}\.{_DIGITS}(?:[eE][+-]?[0-9]+)?|{_DIGITS}[eE][+-]?[0-9]+|\.{_DIGITS})
    |(?P<hex>0[xX][0-9a-fA-F]+)
    |(?P<int>{_DIGITS})
    |(?P<text>[rR]?(?:"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'))
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<sign>&&|\|\||==|!=|<=|>=|[-+*/%!<>?:.,()\[\]])""",
    re.VERBOSE,
)
_ESCAPE: Final = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-7]{3})|(.))", re.DOTALL
)
_ESCAPED: Final = dict(zip("abfnrtv\\?\"'`", "\a\b\f\n\r\t\v\\?\"'`", strict=True))
_BINARY: Final = (
    ("==", "!=", "<", "<=", ">", ">=", "in"),
    ("+", "-"),
    ("*", "/", "%"),
)
_WRITTEN_OTHERWISE: Final = {
    "and": "&&",
    "or": "||",
    "not": "!",
    "=": "==",
    "&": "&&",
    "|": "||",
    "is": "==",
    "True": "true",
    "False": "false",
    "None": "null",
}
_RESERVED: Final = {
    *("as", "break", "const", "continue", "else", "for", "function", "if", "import", "in", "let"),
    *("loop", "package", "namespace", "return", "var", "void", "while"),
}


class _Token(Struct, frozen=True):
    kind: str  # float hex int text name sign end
    text: str
    at: int


def parse(text: str) -> Node:
    """The tree of ``text``. ``ExpressionError`` names the error and the character where it is."""
    if len(text) > TEXT_MAX:
        raise ExpressionError(f"has {len(text):,} characters, more than {TEXT_MAX:,}")
    return _Parser(_tokens(text)).whole()


def _tokens(text: str) -> list[_Token]:
    tokens, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise _unreadable(text, at)
        kind = match.lastgroup or ""
        if kind != "space":
            tokens.append(_Token(kind, match[0], at))
        at = match.end()
    return [*tokens, _Token("end", "", len(text))]


def _unreadable(text: str, at: int) -> ExpressionError:
    sign = text[at]
    if sign in "\"'":
        return wrong_at(at, f"the text {shortened(text[at:])} has no end", f"end it with {sign}")
    if sign in "{}":
        return wrong_at(at, "maps and messages are not supported")
    meant = _WRITTEN_OTHERWISE.get(sign)
    return wrong_at(at, f"{sign!r} means nothing here", f"did you mean {meant}?" if meant else "")


def wrong_at(at: int, message: str, hint: str = "") -> ExpressionError:
    """The error of the part that begins at character ``at``."""
    return ExpressionError(f"at character {at + 1}: {message}", hint)


class _Parser:
    """A recursive-descent parser. ``_depth``: the nesting depth of the part that is being read."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._next = 0
        self._depth = 0

    def whole(self) -> Node:
        """The whole text as one expression."""
        if self._peek().kind == "end":
            raise ExpressionError("is empty", "e.g. 'size(\"jpg\") < 5000000'")
        node = self._expression()
        self._refuse_rest()
        _check_depth(node)
        return node

    # -- tokens -----------------------------------------------------------------------------------

    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        token = self._tokens[self._next]
        self._next += 1
        return token

    def _accept(self, *signs: str) -> _Token | None:
        token = self._peek()
        if token.kind in ("sign", "name") and token.text in signs:
            return self._take()
        return None

    def _expect(self, sign: str) -> None:
        if self._accept(sign) is None:
            raise self._unexpected(f"{sign} is missing")

    def _unexpected(self, wanted: str) -> ExpressionError:
        token = self._peek()
        if token.kind == "end":
            return wrong_at(token.at, f"{wanted}: the expression ends here")
        meant = _WRITTEN_OTHERWISE.get(token.text)
        hint = f"did you mean {meant}?" if meant else ""
        return wrong_at(token.at, f"{wanted} before {shortened(token.text)}", hint)

    def _refuse_rest(self) -> None:
        if self._peek().kind != "end":
            raise self._unexpected("an operator is missing")

    # -- from the weakest operator to the strongest ------------------------------------------------

    def _expression(self) -> Node:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise _too_deep(self._peek().at)
        condition = self._any_of("||")
        mark = self._accept("?")
        if mark is not None:
            then = self._any_of("||")
            self._expect(":")
            condition = Operation("?:", (condition, then, self._expression()), at=mark.at)
        self._depth -= 1
        return condition

    def _any_of(self, operator: str) -> Node:
        """An operation ``||`` or ``&&`` with all its operands side by side. The operands of ``||``
        may be ``&&`` operations."""
        operand = partial(self._any_of, "&&") if operator == "||" else partial(self._binary, 0)
        first, at = operand(), self._peek().at
        operands = [first]
        while self._accept(operator):
            operands.append(operand())
        return first if len(operands) == 1 else Operation(operator, tuple(operands), at=at)

    def _binary(self, level: int) -> Node:
        if level == len(_BINARY):
            return self._unary()
        left = self._binary(level + 1)
        while token := self._accept(*_BINARY[level]):
            left = Operation(token.text, (left, self._binary(level + 1)), at=token.at)
        return left

    def _unary(self) -> Node:
        signs: list[_Token] = []
        while token := self._accept("!", "-"):
            if signs and token.text != signs[-1].text:
                raise wrong_at(token.at, f"{token.text} right behind {signs[-1].text}")
            signs.append(token)
        # The sign is read with the number, because 2**63 alone does not fit in 64 bits.
        if signs and signs[-1].text == "-" and self._peek().kind in ("int", "hex"):
            token, sign = self._take(), signs.pop()
            number = Constant(_integer(token, negative=True), at=sign.at)
            node = self._members(number)
        else:
            node = self._members(self._primary())
        if len(signs) > DEPTH_MAX:
            raise _too_deep(signs[0].at)
        for sign in reversed(signs):
            node = Operation(sign.text, (node,), at=sign.at)
        return node

    def _members(self, node: Node) -> Node:
        while token := self._accept(".", "["):
            if token.text == "[":
                index = self._expression()
                self._expect("]")
                node = Operation("[]", (node, index), at=token.at)
                continue
            name = self._take()
            if name.kind != "name" or name.text in ("true", "false", "null"):
                raise wrong_at(name.at, "the name of a field or method is missing")
            if self._accept("("):
                arguments = (node, *self._list(")"))
                node = Call(name.text, arguments, is_method=True, at=name.at)
            else:
                node = Select(node, name.text, at=name.at)
        return node

    def _list(self, end: str) -> tuple[Node, ...]:
        items: list[Node] = []
        while not self._accept(end):
            if items:
                self._expect(",")
                if end == "]" and self._accept(end):  # CEL allows a comma at the end of a list
                    break
            items.append(self._expression())
        return tuple(items)

    def _primary(self) -> Node:
        token = self._peek()
        at = token.at
        if token.kind == "end" or (token.kind == "sign" and token.text not in ("(", "[")):
            raise self._unexpected("a value is missing")
        self._take()
        match token.kind:
            case "sign" if token.text == "[":
                return ListOf(self._list("]"), at=at)
            case "sign":
                node = self._expression()
                self._expect(")")
                return node
            case "name":
                return self._named(token)
            case "text":
                self._refuse_joined(token, "texts")
                return Constant(_string(token), at=at)
            case "float":
                self._refuse_joined(token, "numbers")
                return Constant(float(token.text.replace("_", "")), at=at)
            case _:
                self._refuse_joined(token, "numbers")
                return Constant(_integer(token), at=at)

    def _named(self, token: _Token) -> Node:
        word = token.text
        if word in ("true", "false", "null"):
            return Constant({"true": True, "false": False, "null": None}[word], at=token.at)
        if word in _RESERVED:
            raise wrong_at(token.at, f"{word} is a reserved word")
        following = self._peek()
        if following.kind == "text" and following.at == token.at + len(word):
            raise wrong_at(token.at, "bytes are not supported", 'write "text", or r"raw text"')
        if self._accept("("):
            return Call(word, self._list(")"), at=token.at)
        return Name(word, at=token.at)

    def _refuse_joined(self, token: _Token, what: str) -> None:
        """Raise an error if a word follows a number or text without a space: ``1u``, ``5MB``."""
        following = self._peek()
        if following.kind in ("name", "int") and following.at == token.at + len(token.text):
            found = token.text + following.text
            raise wrong_at(
                token.at, f"{found} is no number" if what == "numbers" else "no operator"
            )


def _integer(token: _Token, *, negative: bool = False) -> int:
    base = 16 if token.kind == "hex" else 10
    digits = token.text.replace("_", "")
    number = int(digits, base) if len(digits) <= 32 else 1 << 64
    number = -number if negative else number
    if not -(1 << 63) <= number < 1 << 63:
        raise wrong_at(token.at, f"{shortened(token.text)} does not fit in 64 bits")
    return number


def _string(token: _Token) -> str:
    text = token.text
    if text[0] in "rR":
        return text[2:-1]

    def character(match: re.Match[str]) -> str:
        *codes, octal, sign = match.groups()
        code = next((each for each in codes if each), None)
        if sign is not None:
            if sign not in _ESCAPED:
                raise wrong_at(
                    token.at, f"\\{sign} means nothing in a text", 'r"\\d" keeps the backslash'
                )
            return _ESCAPED[sign]
        number = int(code, 16) if code else int(octal, 8)
        if number > 0x10FFFF or 0xD800 <= number < 0xE000:
            raise wrong_at(token.at, f"{match[0]} is no character")
        return chr(number)

    return _ESCAPE.sub(character, text[1:-1])


def _too_deep(at: int) -> ExpressionError:
    return wrong_at(at, f"parts are nested more than {DEPTH_MAX} levels deep")


def _check_depth(node: Node) -> None:
    """Check the depth of the whole tree: chains like ``a + b + c`` and ``a.b.c`` get deeper without
    parentheses, which ``_depth`` does not count."""
    level, depth = [node], 0
    while level:
        depth += 1
        if depth > 2 * DEPTH_MAX:
            raise _too_deep(level[0].at)
        level = [child for each in level for child in children(each)]
