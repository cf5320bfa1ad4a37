"""Resolves the names of an expression and checks its types.

The types of constants and of facts of the index are known; the types of values in members are known
only when the members are read (``dyn``). An expression whose types cannot fit for any record is
refused before the job begins.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from dsort.expressions.parser import (
    Call,
    Constant,
    ExpressionError,
    HasField,
    Leaf,
    ListOf,
    Name,
    Node,
    Operation,
    Quantified,
    Select,
    wrong_at,
)
from dsort.expressions.semantics import FUNCTIONS, PatternError, compiled
from dsort.naming.names import closest, shortened

_VARIABLES: Final = {"key": "str", "shard": "str", "input": "str", "ordinal": "int"}
_CONTENT: Final = {
    **dict.fromkeys(("json", "jsn"), "json"),
    **dict.fromkeys(("cls", "cls2", "class", "count", "index", "inx", "id"), "int"),
    **dict.fromkeys(("txt", "text", "transcript"), "str"),
}
"""The content of a member, by the last part of its extension, as in webdataset's ``autodecode``."""
_READ_AS: Final = {"json": ("json", "dyn"), "number": ("number", "dyn"), "text": ("str", "str")}
"""Functions that read a member, or a column, as the type in their name: (kind of leaf, type)."""
_QUANTIFIERS: Final = ("exists", "all", "exists_one")
_RESULTS: Final = {
    **dict.fromkeys(("size", "int"), "int"),
    **dict.fromkeys(("string", "lowerAscii", "upperAscii"), "str"),
    **dict.fromkeys(("contains", "startsWith", "endsWith"), "bool"),
    "double": "float",
}
_TEXT_METHODS: Final = ("contains", "startsWith", "endsWith", "lowerAscii", "upperAscii", "matches")
_WORDS: Final = {
    "bool": "true or false",
    "int": "a number",
    "float": "a number",
    "str": "a text",
    "null": "null",
    "list": "a list",
    "dict": "an object",
}
_NUMBERS: Final = ("int", "float")
_Typed = tuple[Node, str]


def resolve(node: Node, *, wanted: str = "bool") -> Node:
    """``node``, in which leaves replace the names and the calls that use members.
    ``ExpressionError`` unless the result may be of the type ``wanted``."""
    found, type_ = _Resolver(()).typed(node)
    if wanted and type_ not in (wanted, "dyn"):
        raise ExpressionError(
            f"is {_WORDS[type_]}, not {_WORDS[wanted]}",
            "compare it with something, as in 'size(\"jpg\") < 5000000'" * (wanted == "bool"),
        )
    return found


class _Resolver:
    """Resolves nodes. ``variables``: the variables of the surrounding quantifiers."""

    def __init__(self, variables: tuple[str, ...]) -> None:
        self._variables = variables

    def typed(self, node: Node) -> _Typed:
        """``node`` resolved, with its type."""
        match node:
            case Constant(value):
                return node, "null" if value is None else type(value).__name__
            case Name(name):
                return self._name(node, name)
            case ListOf(items):
                return replace(node, items=tuple(self.typed(each)[0] for each in items)), "list"
            case Select(target, name):
                return replace(node, target=self._object(target)), "dyn"
            case Call():
                return self._call(node)
            case Operation():
                return self._operation(node)
        raise AssertionError(node)

    def _name(self, node: Name, name: str) -> _Typed:
        if name in self._variables:
            return node, "dyn"
        if name in _VARIABLES:
            return Leaf(name, at=node.at), _VARIABLES[name]  # type: ignore[arg-type]
        if name.lower() in _CONTENT:
            return _member(node, (name,), _CONTENT[name.lower()])
        known = [*_VARIABLES, *self._variables]
        near = closest(name, known)
        hint = (
            f'there are {", ".join(known)}, and members: json.score, cls, txt, text("tag"), '
            'number("score"), size("jpg"), has("cls")'
        )
        raise wrong_at(
            node.at, f"there is no {shortened(name)}", f'did you mean "{near}"?' if near else hint
        )

    def _object(self, node: Node) -> Node:
        found, type_ = self.typed(node)
        if type_ not in ("dict", "dyn"):
            hint = "only JSON has fields: json.score" if isinstance(found, Leaf) else ""
            raise wrong_at(node.at, f"{_WORDS[type_]} has no fields", hint)
        return found

    # -- calls ------------------------------------------------------------------------------------

    def _call(self, node: Call) -> _Typed:
        name, arguments = node.name, node.arguments
        if not node.is_method:
            if name == "ext":
                return self._content(node)
            if name == "has":
                return self._has(node)
            if name in _READ_AS:
                kind, type_ = _READ_AS[name]
                return Leaf(kind, _extensions(node), at=node.at), type_  # type: ignore[arg-type]
            if name == "size" and not arguments:
                return Leaf("total", at=node.at), "int"
            if name == "size" and isinstance(arguments[0], Constant):
                return Leaf("size", _extensions(node), at=node.at), "int"
        elif name in _QUANTIFIERS:
            return self._quantified(node)
        if name == "matches":
            return self._matches(node)
        if name not in FUNCTIONS:
            known = [*FUNCTIONS, *_READ_AS, "ext", "has", "matches", *_QUANTIFIERS]
            near = closest(name, known)
            hint = f'did you mean "{near}"?' if near else f"there are {', '.join(sorted(known))}"
            raise wrong_at(node.at, f"there is no function {shortened(name)}", hint)
        if node.is_method and name in ("int", "double", "string"):
            raise wrong_at(node.at, f"{name} is no method", f"write {name}(...)")
        if not node.is_method and name in _TEXT_METHODS:
            raise wrong_at(node.at, f"{name} is a method", f'as in key.{name}("a")')
        count, _ = FUNCTIONS[name]
        self._check_count(node, count)
        found = []
        for argument in arguments:
            each, type_ = self.typed(argument)
            if name in _TEXT_METHODS and type_ not in ("str", "dyn"):
                raise wrong_at(argument.at, f"{name} is for texts, and this is {_WORDS[type_]}")
            if name == "size" and type_ not in ("str", "list", "dict", "dyn"):
                raise wrong_at(argument.at, f"{_WORDS[type_]} has no size")
            found.append(each)
        return replace(node, arguments=tuple(found)), _RESULTS[name]

    def _check_count(self, node: Call, count: int) -> None:
        taken = node.is_method
        if len(node.arguments) != count:
            wanted, given = count - taken, len(node.arguments) - taken
            raise wrong_at(node.at, f"{node.name} takes {wanted} arguments, not {given}")

    def _content(self, node: Call) -> _Typed:
        extensions = _extensions(node)
        kinds = {_CONTENT.get(each.rpartition(".")[2].lower()) for each in extensions}
        if None in kinds or len(kinds) > 1:
            raise wrong_at(
                node.at,
                f"ext({shortened(';'.join(extensions))}) cannot be read",
                f'there are {", ".join(_CONTENT)}; for others, text("tag"), number("score"), '
                'json("meta"), size("jpg") and has("jpg")',
            )
        return _member(node, extensions, str(kinds.pop()))

    def _has(self, node: Call) -> _Typed:
        if len(node.arguments) == 1 and isinstance(node.arguments[0], Select):
            select = node.arguments[0]
            return HasField(self._object(select.target), select.name, at=node.at), "bool"
        if len(node.arguments) == 1 and isinstance(node.arguments[0], (Name, Call)):
            found, _ = self.typed(node.arguments[0])
            if isinstance(found, Leaf) and found.is_content:
                return HasField(found, "", at=node.at), "bool"
        if len(node.arguments) != 1 or not isinstance(node.arguments[0], Constant):
            raise wrong_at(
                node.at,
                "has needs a member or a field",
                'has("jpg"), has(txt) or has(json.score)',
            )
        return Leaf("has", _extensions(node), at=node.at), "bool"

    def _matches(self, node: Call) -> _Typed:
        self._check_count(node, 2)
        text, pattern = node.arguments
        found, type_ = self.typed(text)
        if type_ not in ("str", "dyn"):
            raise wrong_at(text.at, f"matches is for texts, and this is {_WORDS[type_]}")
        if not isinstance(pattern, Constant) or not isinstance(pattern.value, str):
            raise wrong_at(pattern.at, "the pattern of matches has to be a text", 'r"^n0[0-9]+"')
        _compiled(pattern, pattern.value)
        return replace(node, arguments=(found, pattern)), "bool"

    def _quantified(self, node: Call) -> _Typed:
        self._check_count(node, 3)
        target, variable, body = node.arguments
        if not isinstance(variable, Name):
            raise wrong_at(variable.at, "a name is missing", 'as in tags.exists(tag, tag == "cat")')
        if self._variables:
            raise wrong_at(node.at, "exists, all and exists_one cannot be nested")
        found, type_ = self.typed(target)
        if type_ not in ("list", "dict", "dyn"):
            raise wrong_at(target.at, f"{_WORDS[type_]} has no items")
        inner, inner_type = _Resolver((variable.name,)).typed(body)
        if inner_type not in ("bool", "dyn"):
            raise wrong_at(body.at, f"is {_WORDS[inner_type]}, not true or false")
        return Quantified(node.name, found, variable.name, inner, at=node.at), "bool"

    # -- operators --------------------------------------------------------------------------------

    def _operation(self, node: Operation) -> _Typed:
        operator = node.operator
        found, types = [], []
        for operand in node.operands:
            each, type_ = self.typed(operand)
            found.append(each)
            types.append(type_)
        result = _type_of(operator, types)
        if result is None:
            words = f" {operator} ".join(_WORDS.get(each, "anything") for each in types)
            if len(types) == 1:
                words = f"{operator} {words}"
            raise wrong_at(node.at, f"{words} has no meaning", _operation_hint(operator, types))
        if operator == "-" and len(found) == 1:
            node = replace(node, operator="negative")
        return replace(node, operands=tuple(found)), result


def _member(node: Node, extensions: tuple[str, ...], kind: str) -> _Typed:
    """The content of a member; the type of JSON is known only when it is read."""
    return Leaf(kind, extensions, at=node.at), "dyn" if kind == "json" else kind  # type: ignore[arg-type]


def _operation_hint(operator: str, types: list[str]) -> str:
    if operator in ("&&", "||", "!", "?:"):
        return "its operands have to be true or false: comparisons, has(...)"
    if "str" in types and set(types) & {"int", "float"}:
        return "write numbers without quotes; double(...) converts a text to a number"
    return ""


def _type_of(operator: str, types: list[str]) -> str | None:
    """The type of the result; None if the operation has no meaning for these types."""
    known = [each for each in types if each != "dyn"]
    are_numbers = all(each in _NUMBERS for each in known)
    are_same = are_numbers or len(set(known)) <= 1
    match operator:
        case "&&" | "||" | "!":
            return "bool" if all(each == "bool" for each in known) else None
        case "?:":
            if types[0] not in ("bool", "dyn"):
                return None
            return types[1] if types[1] == types[2] else "dyn"
        case "==" | "!=":
            return "bool" if are_same or "null" in known else None
        case "<" | "<=" | ">" | ">=":
            return "bool" if are_same and set(known) <= {"int", "float", "str", "bool"} else None
        case "in":
            return "bool" if types[1] in ("list", "dict", "dyn") else None
        case "[]":
            return "dyn" if types[0] in ("list", "dict", "dyn") else None
        case "+" if are_same and set(known) <= {"str", "list"}:
            return known[0] if len(known) == len(types) else "dyn"
        case "%":
            return "int" if set(known) <= {"int"} else None
        case _:
            if not are_numbers:
                return None
            return "dyn" if len(known) < len(types) else "float" if "float" in known else "int"


def _extensions(node: Call) -> tuple[str, ...]:
    """The extensions that a call names: ``"jpg;jpeg"`` means the first of these that a record
    has."""
    argument = node.arguments[0] if len(node.arguments) == 1 else None
    if not isinstance(argument, Constant) or not isinstance(argument.value, str):
        raise wrong_at(node.at, f"{node.name} takes an extension", f'as in {node.name}("json")')
    found = tuple(each.strip() for each in argument.value.split(";"))
    for each in found:
        if not each or each.startswith(".") or set(each) & set("/\0\n\r"):
            hint = "write it without its dot: jpg, seg.png, info.json"
            raise wrong_at(argument.at, f"{shortened(repr(each))} is no extension", hint)
    return found


def _compiled(node: Node, pattern: str) -> None:
    """``ExpressionError`` unless ``pattern`` is a valid pattern of RE2."""
    try:
        compiled(pattern)
    except PatternError as error:
        raise wrong_at(node.at, f"{shortened(pattern)} is no regular expression: {error}") from None
