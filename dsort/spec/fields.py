"""The types of a spec's fields, each with the values that it accepts, their converted form, and its
JSON Schema; and a search for buckets and files in a spec by these types."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Protocol, get_args, get_origin
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    PlainSerializer,
    Strict,
    ValidationInfo,
    WithJsonSchema,
)
from typing_extensions import get_type_hints, is_typeddict

from dsort.containers.registry import check_supported, load_installed
from dsort.errors import SpecProblem
from dsort.naming.inputs import parse_input_template
from dsort.naming.names import (
    check_object_name,
    check_output_name,
    closest,
    normalize_extension,
    shortened,
)
from dsort.naming.patterns import FileLocation, glob_regex
from dsort.naming.templates import SPLIT_FIELD, parse_template
from dsort.option_fields import OptionError
from dsort.sidecars.kinds import BUILT_IN, SIDECARS, parse_kinds
from dsort.sizes import parse_quantity, parse_size_bytes
from dsort.spec.buckets import BUCKET_SCHEMA, bucket_value, parse_bucket
from dsort.spec.part import FieldError, describe, of_option, repeated
from dsort.spec.target import MultipleOf
from dsort.storage.ref import BucketRef
from dsort.transforms.fields import check_extension

_INT_MAX: Final = 2**63 - 1
_URL: Final = r"[A-Za-z][A-Za-z0-9+.-]*://"
_NULL: Final = {"type": "null"}  # null means "not given"


class BucketReading(Protocol):
    """The settings for reading the buckets of a spec during validation (pydantic's context)."""

    ais_is_there: bool


def named(pattern: str, what: str, hint: str) -> AfterValidator:
    """Refuses a text that does not match ``pattern``. ``what``: what the message calls a matching
    text."""

    def check(text: str) -> None:
        if not re.fullmatch(pattern, text):
            raise FieldError(f"{describe(text)} is no {what}", hint)

    return checked_by(check)


def _bucket(value: object, info: ValidationInfo) -> BucketRef:
    context: BucketReading | None = info.context
    return parse_bucket(value, ais_is_there=context is not None and context.ais_is_there)


def _size(value: object) -> object:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise FieldError(f'must be a size such as "100MB", not {describe(value)}')
    return parse_size_bytes(value) or None


def _quantity(value: object) -> str:
    if not isinstance(value, str):
        raise FieldError(f'must be a share or an amount ("80%", "10GB"), not {describe(value)}')
    parse_quantity(value)
    return "".join(value.split())


def _archive_extension(text: str) -> str:
    try:
        extension = normalize_extension(text)
    except ValueError:
        if not load_installed():
            raise
        return _archive_extension(text)
    check_supported(extension)
    return extension


def checked_by(*checks: Callable[[Any], object]) -> AfterValidator:
    """Refuses a value for which one of ``checks`` raises."""

    def check(value: Any) -> Any:
        for each in checks:
            each(value)
        return value

    return AfterValidator(check)


def without(problems: Callable[[Any], Iterator[SpecProblem]]) -> AfterValidator:
    """Refuses a value that has ``problems``, whose paths begin at the value."""

    def check(value: Any) -> None:
        if found := [*problems(value)]:
            raise FieldError.of(found)

    return checked_by(check)


def _twice(names: tuple[str, ...]) -> Iterator[SpecProblem]:
    hint = "the records of the shard would be in the job twice"
    for index, name in repeated(names):
        yield SpecProblem(f"[{index}]", f'"{name}" is named twice', hint)


def _check_input_template(text: str) -> None:
    for name in parse_input_template(text).first_names:
        check_object_name(name)


_RANGE_MARK: Final = re.compile(r"[{}@%]")
_BARE_NUMBER: Final = re.compile(r"0\d+d(?![0-9A-Za-z])")


def _check_output_template(text: str) -> None:
    if not _RANGE_MARK.search(text) and (number := _BARE_NUMBER.search(text)):
        meant = f"{text[: number.start()]}%{text[number.start() :]}"
        raise FieldError(f"no range in template {shortened(text)!r}", f'did you mean "{meant}"?')
    check_output_name(parse_template(text).name(0))


def _sidecar_kinds(value: object) -> object:
    items = value if isinstance(value, (list, tuple)) else [value or "none"]
    if not all(isinstance(each, str) for each in items):
        raise FieldError(f"must be a kind, or a list of them, not {describe(value)}")
    kinds = parse_kinds(items)
    for each in kinds:
        if SIDECARS.find(each) is None:
            near = closest(each, SIDECARS)
            hint = f'did you mean "{near}"?' if near else f"known are {', '.join(SIDECARS)}"
            raise FieldError(f'"{each}" is no kind of index', hint)
        if kinds.count(each) > 1:
            raise FieldError(f'"{each}" is there more than once')
    return kinds


def _check_not_empty(items: Collection[str]) -> None:
    # Pydantic's own min_length counts only valid items: a list of invalid ones would count as
    # empty.
    if not items:
        raise FieldError("must not be empty")


def _twice_in_key_map(templates: Mapping[str, Sequence[str]]) -> Iterator[SpecProblem]:
    owners: dict[str, str] = {}
    for template, keys in templates.items():
        for index, key in enumerate(keys):
            if key in owners:
                text = f'duplicated key "{key}": it is under "{owners[key]}" already'
                yield SpecProblem(f"{template}[{index}]", text)
            owners.setdefault(key, template)


def _check_key_map_location(text: str) -> None:
    match = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", text)
    scheme = match[1].lower() if match else "file"
    if scheme not in ("file", "http", "https"):
        raise FieldError(
            f'"{text}": {scheme}:// is not supported yet by this version',
            "give a path, or a file://, http:// or https:// URL",
        )
    if "\0" in text:
        raise FieldError(f"{text!r} contains a NUL character")


def _check_webhook_url(text: str) -> None:
    try:
        parts = urlsplit(text)
        fine = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        fine = False
    if not fine or not text.isascii() or not text.isprintable() or " " in text:
        raise FieldError("is no URL of a web server", 'e.g. "https://hooks.example.com/dsort"')
    if "@" in parts.netloc:
        raise FieldError("must have no user and password", "use a URL that needs none")


def _anchored(value: object, info: ValidationInfo) -> object:
    """A path in a spec file is relative to the file."""
    directory = getattr(info.context, "directory", None)
    return value if directory is None else anchored(value, directory)


def anchored(location: object, directory: Path) -> object:
    """``location``, made absolute from ``directory`` if it is a path."""
    if not isinstance(location, str) or re.match(_URL, location):
        return location
    return str((directory / location).absolute())


def _check_expression(text: str) -> None:
    from dsort.expressions.expression import Expression  # most specs have none

    Expression.of(text, wanted="")


def _check_joined_by(text: str) -> None:
    if text in ("key", "stem"):
        return
    try:
        _check_expression(text)
    except OptionError as error:
        raise FieldError(str(error), error.hint or "write an expression, key or stem") from None


def _check_class(text: str) -> None:
    from dsort.transforms.outputs import class_by

    class_by(text)


Bucket = Annotated[
    BucketRef,
    BeforeValidator(_bucket),
    PlainSerializer(bucket_value),
    WithJsonSchema(dict(BUCKET_SCHEMA)),
]
SidecarKinds = Annotated[
    tuple[str, ...],
    Strict(False),
    BeforeValidator(_sidecar_kinds),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": ["none", *(each.kind for each in BUILT_IN)]},
                {"type": "array", "items": {"enum": [each.kind for each in BUILT_IN]}},
            ]
        }
    ),
]
SizeBytes = Annotated[
    int | None,
    BeforeValidator(_size),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 0}, _NULL]}),
]
MemoryAmount = Annotated[str, BeforeValidator(_quantity)]
ArchiveExtension = Annotated[str, AfterValidator(_archive_extension)]
InputName = Annotated[
    str,
    named(
        r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}",
        "name of an input",
        "letters, digits, - and _, up to 64, as in web or code-2",
    ),
]
InputText = Annotated[str, checked_by(_check_input_template)]
OutputFormat = Annotated[
    str, checked_by(lambda text: _check_output_template(text.replace(SPLIT_FIELD, "split")))
]
OutputTemplate = Annotated[str, checked_by(_check_output_template)]
SplitName = Annotated[
    str,
    named(
        r"([A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*)?",
        "name of a split",
        "letters, digits, '_' and '.': train, val_1",
    ),
]
ObjectNames = Annotated[
    tuple[Annotated[str, checked_by(check_object_name)], ...],
    Strict(False),
    checked_by(_check_not_empty),
    without(_twice),
    Field(json_schema_extra={"minItems": 1}),
]
NamePrefix = Annotated[str, checked_by(lambda text: check_object_name(text.removesuffix("/")))]
Glob = Annotated[str, checked_by(check_object_name, glob_regex)]
LocalFile = Annotated[FileLocation, BeforeValidator(_anchored)]
"""A path; if the spec was read from a file, the path is relative to that file."""
KeyMapLocation = Annotated[LocalFile, checked_by(_check_key_map_location)]
WebhookUrl = Annotated[str, Field(max_length=2000), checked_by(_check_webhook_url)]
CommandName = Annotated[
    str,
    named(
        r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}",
        "name of a command",
        "commands are defined under [commands] in the settings of the user who runs the job; a "
        "spec only names them",
    ),
]
Keys = Annotated[
    tuple[Annotated[str, Field(min_length=1)], ...],
    Strict(False),
    checked_by(_check_not_empty),
    Field(json_schema_extra={"minItems": 1}),
]
ExpressionText = Annotated[str, checked_by(of_option(_check_expression))]
JoinedBy = Annotated[str, Field(min_length=1), checked_by(_check_joined_by)]
ClassText = Annotated[str, checked_by(of_option(_check_class))]
KeyMap = Annotated[
    Mapping[OutputTemplate, Keys], checked_by(_check_not_empty), without(_twice_in_key_map)
]
Count = Annotated[int, Field(ge=1, le=_INT_MAX)]
Weight = Annotated[float, Field(gt=0, le=1000, strict=False)]
Times = Annotated[int, Field(ge=1, le=1000)]
Limit = Annotated[int, Field(ge=0, le=_INT_MAX)]
Extension = Annotated[str, checked_by(of_option(check_extension))]
Expansion = Annotated[int, Field(ge=1, le=1_000_000)]


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
        raise FieldError("has no multiple_of", _HINT)
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
                            "output_shard_records allow, rounded up to a multiple of this number.",
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


Located = tuple[str, FileLocation | BucketRef]


def located(value: object, kind: Any = None, path: str = "") -> Iterator[Located]:
    """(path of the field, its bucket or file) of each bucket and each file in ``value``, a part of
    a spec whose type is ``kind``. Models, typed dicts, lists and mappings are searched; for a
    union, each type is tried."""
    if value is None or isinstance(value, int | float):
        return  # most fields of most specs
    if isinstance(value, BucketRef):
        yield path, value
    elif isinstance(value, BaseModel):
        for name, field in type(value).model_fields.items():
            yield from located(getattr(value, name), field.annotation, _joined(path, name))
    elif kind is FileLocation:
        if isinstance(value, str):
            yield path, FileLocation(value)
    elif is_typeddict(kind):
        if isinstance(value, Mapping):
            for name, each in get_type_hints(kind, include_extras=True).items():
                if name in value:
                    yield from located(value[name], each, _joined(path, name))
    else:
        yield from _in_parts(value, kind, path)


def _in_parts(value: object, kind: Any, path: str) -> Iterator[Located]:
    """The results of :func:`located` for a ``kind`` that is made of other types: ``X | None``,
    ``list[X]``, ..."""
    origin, parts = get_origin(kind), get_args(kind)
    holds = origin if isinstance(origin, type) and issubclass(origin, Collection) else None
    if origin is Annotated:
        yield from located(value, parts[0], path)
    elif origin is not None and holds is None:
        for each in parts:
            yield from located(value, each, path)
    elif isinstance(value, Mapping) and (holds is None or issubclass(holds, Mapping)):
        of_key, of_value = parts or (None, None)
        for key, each in value.items():
            yield from located(key, of_key, path)
            yield from located(each, of_value, _joined(path, str(key)))
    elif isinstance(value, (list, tuple, set, frozenset)) and not (
        holds and issubclass(holds, Mapping)
    ):
        is_row = holds is tuple and ... not in parts
        for number, each in enumerate(value):
            own = parts[number if is_row else 0] if parts else None
            yield from located(each, own, f"{path}[{number}]")


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
