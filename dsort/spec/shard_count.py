"""The number of output shards in a spec: a number, or a multiple of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

from dsort.naming.names import closest
from dsort.spec.hints import FieldError, describe
from dsort.spec.target import MultipleOf

__all__ = ["ShardCount"]

_COUNT_MAX: Final = 2**63 - 1
_MULTIPLE_MAX: Final = 1_000_000
_HINT: Final = "64, or {multiple_of: 64}"


def _count(value: Any) -> Any:
    if value is None or isinstance(value, MultipleOf):
        return value
    if isinstance(value, Mapping):
        return MultipleOf(_number_of(value))
    return _whole(value, _COUNT_MAX)


def _number_of(value: Mapping[Any, Any]) -> int:
    unknown = [str(name) for name in value if name != "multiple_of"]
    if unknown:
        near = closest(unknown[0], ["multiple_of"])
        hint = f'did you mean "{near}"?' if near else _HINT
        raise FieldError(f"has an unknown field {unknown[0]}", hint)
    if "multiple_of" not in value:
        raise FieldError("says no number", _HINT)
    return _whole(value["multiple_of"], _MULTIPLE_MAX)


def _whole(value: Any, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise FieldError(f"must be a whole number, not {describe(value)}", _HINT)
    if value < 1:
        raise FieldError(f"must be at least 1, not {value}")
    if value > most:
        raise FieldError(f"must be at most {most}, not {value}")
    return value


def _written(value: int | MultipleOf | None) -> Any:
    return {"multiple_of": value.number} if isinstance(value, MultipleOf) else value


ShardCount = Annotated[
    int | MultipleOf | None,
    BeforeValidator(_count),
    PlainSerializer(_written),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1, "maximum": _COUNT_MAX},
                {
                    "type": "object",
                    "properties": {
                        "multiple_of": {
                            "type": "integer",
                            "minimum": 1,
                            "maximum": _MULTIPLE_MAX,
                            "description": "The fewest shards that output_shard_size and "
                            "output_shard_records allow, rounded up to a multiple of it.",
                        }
                    },
                    "required": ["multiple_of"],
                    "additionalProperties": False,
                },
                {"type": "null"},
            ]
        }
    ),
]
