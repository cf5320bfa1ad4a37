"""Parses YAML with the meaning of JSON, to plain values.

A bare word means the same as in JSON. If it means nothing there, it is text (``yes``, ``1:30``,
``2024-01-01``): a shard may have such a name. There are no tags and no duplicate keys; the
expansion of aliases and merge keys (``<<``) has a limit.
"""

from __future__ import annotations

import re
from typing import Any, Final

import yaml

from dsort.errors import SpecError
from dsort.naming.names import shortened
from dsort.spec.syntax import DEPTH_HINT, DEPTH_MAX, DIGITS_MAX, syntax_error, whole_number

_TAG: Final = "tag:yaml.org,2002:"
_MERGE: Final = "<<"


class _Loader(yaml.SafeLoader):
    """SafeLoader with JSON's meaning of bare words (YAML 1.2's core schema, without octals,
    hexadecimals and NaN)."""

    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> yaml.Node | None:
        """Like PyYAML's method, but with a limit: the time of that method for a node grows with the
        node's depth."""
        if self._depth > DEPTH_MAX:
            raise RecursionError
        self._depth += 1
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def fetch_flow_collection_start(self, token: Any) -> None:
        """Like PyYAML's method, but with a limit: that method reads far ahead of the nodes that it
        composes."""
        if self.flow_level > DEPTH_MAX:
            raise RecursionError
        super().fetch_flow_collection_start(token)


_Loader.yaml_implicit_resolvers = {}  # else SafeLoader's are copied, with yes, 010 and 1:30
for _name, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"-?(?:0|[1-9][0-9]*)", list("-0123456789")),
    ("float", r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?", list("-0123456789")),
):
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(f"(?:{_pattern})$"), _first)


def parse_yaml(text: str, source: str) -> Any:
    """The value of the YAML ``text``; ``SpecError`` with line and column if it is invalid."""
    try:
        root = _Loader(text).get_single_node()
        return _Values(source, nodes_max=2 * len(text) + 100).of(root)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        reason = error.problem or error.context or "broken"
        raise syntax_error(source, "YAML", line, column, reason) from None
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        line, column = before.count("\n") + 1, error.position - before.rfind("\n")
        raise syntax_error(source, "YAML", line, column, "unprintable character") from None
    except RecursionError:
        raise SpecError(f"{source}: nested too deeply", hint=DEPTH_HINT) from None


class _Values:
    """Turns YAML nodes into values. A document has fewer nodes than characters. A document of more
    than ``nodes_max`` nodes repeats aliases of aliases to use up memory."""

    def __init__(self, source: str, *, nodes_max: int) -> None:
        self._source = source
        self._nodes_left = nodes_max

    def of(self, node: yaml.Node | None) -> Any:
        if node is None:
            return None
        self._nodes_left -= 1
        if self._nodes_left < 0:
            raise SpecError(f"{self._source}: too many aliases")
        if isinstance(node, yaml.MappingNode) and node.tag == f"{_TAG}map":
            return self._mapping(node)
        if isinstance(node, yaml.SequenceNode) and node.tag == f"{_TAG}seq":
            return [self.of(each) for each in node.value]
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        raise self._tag_error(node)

    def _mapping(self, node: yaml.MappingNode) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        merged: dict[str, Any] | None = None
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise self._error(key, "a field's name must be text")
            is_merge = key.value == _MERGE and key.style is None  # in quotes it is a name
            if key.value in fields or (is_merge and merged is not None):
                raise self._error(key, f'"{shortened(key.value)}" is in one object twice')
            if is_merge:
                merged = self._merged(value)
            else:
                fields[key.value] = self.of(value)
        return fields if merged is None else merged | fields

    def _merged(self, node: yaml.Node) -> dict[str, Any]:
        """The fields that a merge key adds. If several objects have a field, the first one counts.
        For the limit of nodes, each copy counts as much as its original."""
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        merged: dict[str, Any] = {}
        for source in sources:
            found = self.of(source)
            if not isinstance(found, dict):
                raise self._error(source, f'"{_MERGE}" takes an object, or a list of objects')
            merged = found | merged
        return merged

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        text: str = node.value
        match node.tag.removeprefix(_TAG):
            case "str":
                return text
            case "null":
                return None
            case "bool" if text.lower() in ("true", "false"):
                return text.lower() == "true"
            case "int" if re.fullmatch(r"-?[0-9]+", text):
                return whole_number(text, self._source)
            case "float" if len(text) <= DIGITS_MAX and re.fullmatch(r"[-+0-9.eE]+", text):
                return float(text)
        raise self._tag_error(node)

    def _tag_error(self, node: yaml.Node) -> SpecError:
        tag = shortened(node.tag.replace(_TAG, "!!"))
        return self._error(node, f"the tag {tag} is not supported here")

    def _error(self, node: yaml.Node, reason: str) -> SpecError:
        mark = node.start_mark
        return syntax_error(self._source, "YAML", mark.line + 1, mark.column + 1, reason)
