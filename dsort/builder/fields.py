"""The fields that calls have set; they are frozen, and checked from ``write`` on."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from dsort.containers.registry import is_columnar
from dsort.errors import SpecError, SpecProblem
from dsort.installation import is_part
from dsort.naming.extensions import CODECS
from dsort.naming.names import archive_extension, codec_extension, shortened
from dsort.spec.buckets import bucket_value
from dsort.spec.load import LoadedSpec, parse_spec
from dsort.storage.ref import BucketRef

if TYPE_CHECKING:
    from dsort.spec.transform import Lookup, NamedTransform

__all__ = [
    "BuilderFields",
    "Place",
    "input_place",
    "name_of",
    "only_given",
    "output_place",
    "problem",
]


_OF_SORT: Final = {
    "content_key_missing": "missing",
    "content_key_type": "type",
    "extension": "by",
    "json_field": "field",
    "keys": "by",
}
_STEP: Final = re.compile(r"transform\.steps\[(\d+)\](?:\.\w+)?(.*)")
_INPUT: Final = re.compile(r"inputs\[(\d+)\](.*)")
_OUTPUT: Final = re.compile(r"outputs\[(\d+)\](.*)")


def in_words_of_calls(
    problems: Sequence[SpecProblem],
    fields: Mapping[str, Any],
    order: str,
    inputs: Sequence[str],
    set_by: Mapping[str, str],
) -> list[SpecProblem]:
    """``problems`` of a spec with these ``fields``, with the names of calls instead of fields.
    ``order``: the call that set the order of records; ``inputs``: the calls that set the inputs;
    ``set_by``: the call that sets each field."""
    names = sorted((name for name in set_by if "_" in name), key=len, reverse=True)
    named = re.compile(rf"\b({'|'.join(names)})\b")

    def text(text: str) -> str:
        return named.sub(lambda found: set_by[found[1]], text)

    return [
        SpecProblem(
            _path(each.path, fields, order, inputs, set_by), text(each.message), text(each.hint)
        )
        for each in problems
    ]


def _path(
    path: str,
    fields: Mapping[str, Any],
    order: str,
    inputs: Sequence[str],
    set_by: Mapping[str, str],
) -> str:
    step, given, output = (each.fullmatch(path) for each in (_STEP, _INPUT, _OUTPUT))
    if step is not None:
        return _step(int(step[1]), step[2], fields)
    if given is not None:
        number = int(given[1])
        call = inputs[number] if number < len(inputs) else "read(...)"
        return f"{call}{_part(given[2])}"
    if output is not None:
        outputs = fields.get("outputs", ())
        number = int(output[1])
        name = outputs[number].get("name", "") if number < len(outputs) else ""
        return f"output {name!r}{_part(output[2])}"
    name, dot, rest = path.partition(".")
    if name == "algorithm":
        argument = _OF_SORT.get(rest, rest) if order == "sort" else rest
        return f"{order}(...)" if rest in ("", "kind") else f"{order}({argument}=...)"
    if name == "transform" and dot:
        return {"use": "use(...)", "steps": "steps"}.get(rest, f"on_error({rest}=...)")
    if name not in set_by:
        return f"reactions({path}=...)"
    call = set_by[name]
    if "(" in call:
        return call + _part(path[len(name) :])
    return f"{call}({rest}=...)" if dot else f"{call}(...)"


def _step(number: int, rest: str, fields: Mapping[str, Any]) -> str:
    steps = fields.get("transform", {}).get("steps", ())
    kinds = [next(iter(each), "step") for each in steps]
    if number >= len(kinds):
        return f"step {number + 1}"
    kind = kinds[number]
    part = rest.lstrip(".")
    text = f"{kind}({part}=...)" if part else f"{kind}(...)"
    if kinds.count(kind) > 1:
        text += f" no. {kinds[: number + 1].count(kind)}"
    return text


def _part(rest: str) -> str:
    return f", {rest.lstrip('.')}" if rest.strip(".") else ""


_REPR_MAX: Final = 300
_OF_INPUTS: Final = ("name", "weight", "repeat", "records", "join")
"""Fields of an input that a spec has on its top level, for all inputs together."""
_CODECS: Final = {each.name: each.suffixes[0] for each in CODECS}


@dataclass(frozen=True, repr=False)
class BuilderFields:
    """``given``: fields of the spec, with all inputs in ``inputs`` and the codec in ``codec``.
    ``calls``: the calls that set them, as Python; ``is_whole``: whether the output place is set,
    which completes the spec.

    Each class of calls has a table ``_set_by``: the call that sets each field of the spec, in the
    order of the reference page. A call without brackets takes the parts of the field as named
    arguments."""

    _set_by: ClassVar[Mapping[str, str]] = {}

    given: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    calls: tuple[str, ...] = ()
    order_call: str = "shuffle"
    is_whole: bool = False

    __hash__ = None  # type: ignore[assignment]  # its values are lists and mappings

    @classmethod
    def set_by(cls) -> dict[str, str]:
        """The call that sets each field of the spec."""
        tables = [vars(each).get("_set_by", {}) for each in reversed(cls.__mro__)]
        return {field: call for table in tables for field, call in table.items()}

    def __repr__(self) -> str:
        text = ".".join(self.calls)
        if len(text) > _REPR_MAX:
            text = f"{text[: _REPR_MAX // 2]}...{text[-_REPR_MAX // 2 :]}"
        return f"<dsort.{text}>"

    def _with(
        self, call: str, values: Mapping[str, Any], *, shown: Mapping[str, Any] | None = None
    ) -> Self:
        """The builder with ``values`` added, except for those that are None. ``shown``: the
        arguments of the call, if they differ from ``values``. ``SpecError`` if the spec is complete
        and has a problem."""
        kept = only_given(**values)
        arguments = kept if shown is None else shown
        made = replace(
            self,
            # A copy, because the caller may change its lists and objects later.
            given=MappingProxyType({**self.given, **copy.deepcopy(kept)}),
            calls=(*self.calls, _call_text(call, arguments)),
        )
        return made._checked()

    def _checked(self) -> Self:
        if self.is_whole and not is_part():  # dsort-client has no containers: the service checks
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # `spec()` gives the warnings again
                self._load(_any_transform)
        return self

    def _load(self, transforms: Lookup) -> LoadedSpec:
        from dsort.options import default_options

        fields = self.to_dict()
        if not self.is_whole:
            raise SpecError(
                f"{self!r} has no place to write", hint='.write("bucket/shard-%06d.tar", size=...)'
            )
        try:
            return parse_spec(
                fields,
                ais_is_there=default_options().settings.ais_is_there,
                transforms=transforms,
            )
        except SpecError as error:
            inputs = [_call_name(each) for each in self.calls if _gives_input(each)]
            found = in_words_of_calls(
                error.problems, fields, self.order_call, inputs, self.set_by()
            )
            raise SpecError(found) from None

    def to_dict(self) -> dict[str, Any]:
        """The fields of the spec as in a spec file. They can be written as JSON if the given values
        can. Defaults are not included."""
        fields = copy.deepcopy(dict(self.given))
        inputs = fields.pop("inputs", [])
        codec = fields.pop("codec", "")
        if len(inputs) == 1 and not any(name in inputs[0] for name in _OF_INPUTS[1:]):
            (only,) = inputs
            fields = {name: it for name, it in only.items() if name != "name"} | fields
        elif inputs:
            fields = {"inputs": inputs, **fields}
        return _compressed(fields, codec) if codec else fields

    def _with_step(self, kind: str, options: Any, **shown: Any) -> Self:
        transform = dict(self.given.get("transform", {}))
        steps = [*transform.get("steps", ()), {kind: copy.deepcopy(options)}]
        return self._with(kind, {"transform": {**transform, "steps": steps}}, shown=shown)


def _compressed(fields: dict[str, Any], codec: str) -> dict[str, Any]:
    """The fields with a codec for output shards, or for the columns in them."""
    template = fields.get("output_format") or ""
    named = archive_extension(template)
    inputs = fields.get("inputs") or [fields]
    own = inputs[0].get("input_extension") or ".tar"
    extension = fields.get("output_extension") or named or own
    if is_columnar(extension):
        return {**fields, "output_compression": codec}
    bare = extension.removesuffix(codec_extension(extension) or "")
    made = f"{bare}{_CODECS.get(codec, '.' + codec)}"
    if named:
        fields["output_format"] = template.removesuffix(named) + made
    return {**fields, "output_extension": made}


def _any_transform(name: str, version: int | None) -> NamedTransform:
    """Accepts any name: names of transforms are not looked up while a spec is built, because a
    service has transforms of its own."""
    from dsort.spec.transform import NamedTransform

    return NamedTransform(name, version or 1, "any", {"steps": [{"slice": "0:"}]}, 0.0)


def _gives_input(call: str) -> bool:
    return _call_name(call).split("(")[0] in ("read", "union", "join")


def _call_name(call: str) -> str:
    """``join('s3://labels')`` of ``join('s3://labels', nonmatch='skip')``."""
    head, _, rest = call.partition("(")
    return f"{head}({rest.split(', ')[0].rstrip(')')})"


def _call_text(call: str, arguments: Mapping[str, Any]) -> str:
    parts = [
        shortened(repr(value)) if name.startswith("_") else f"{name}={shortened(repr(value))}"
        for name, value in arguments.items()
        if value is not None
    ]
    return f"{call}({', '.join(parts)})"


def only_given(**arguments: Any) -> dict[str, Any]:
    """The arguments that a call has: those that are not None."""
    return {name: value for name, value in arguments.items() if value is not None}


def problem(path: str, message: str, hint: str = "") -> SpecError:
    """The error for an argument that is invalid in any spec."""
    return SpecError([SpecProblem(path, message, hint)])


# --------------------------------------------------------------------------------------------------
# Turns a place in a call into a bucket and the shards in it.


Place = str | Path | BucketRef | dict[str, Any]

_RANGE: Final = re.compile(r"\{|@\d|%\d*d")
_PATTERN: Final = re.compile(r"[*?\[]|" + _RANGE.pattern)
_GLOB: Final = re.compile(r"[*?\[]")
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_NAME_MAX: Final = 60


def input_place(where: Place) -> tuple[Any, dict[str, Any]]:
    """(``input_bck``, ``input_format``) of a place to read: a bucket, a shard of it
    (``images/a.tar``), a range of names (``images/a-{00..18}.tar``) or a pattern
    (``images/**/*.tar``)."""
    if not isinstance(where, (str, Path)):
        return _value(where), {}
    text = str(where)
    at = _PATTERN.search(text)
    if at is not None:
        bucket, names = _parted(text, at.start())
        return bucket, {"glob" if _GLOB.search(names) else "template": names}
    head, slash, tail = text.rpartition("/")
    if archive_extension(tail if slash else text):
        return _bucket(head if slash else "."), {"objnames": [tail if slash else text]}
    return _bucket(text), {}


def output_place(where: Place) -> tuple[Any, str | None]:
    """(``output_bck``, ``output_format``) of a place to write; the latter is None if another call
    has the names."""
    if not isinstance(where, (str, Path)):
        return _value(where), None
    text = str(where)
    at = _RANGE.search(text)
    if at is None:
        return _bucket(text), None
    return _parted(text, at.start())


def _value(where: BucketRef | dict[str, Any]) -> Any:
    """A bucket in the form of a spec file."""
    return bucket_value(where) if isinstance(where, BucketRef) else where


def _parted(text: str, at: int) -> tuple[str, str]:
    """(bucket, rest) of a text. The bucket ends at the last slash before position ``at``. The part
    that stands for several names begins at ``at``."""
    head, slash, tail = text[:at].rpartition("/")
    return _bucket(head if slash else "."), tail + text[at:]


def _bucket(text: str) -> str:
    """An absolute path becomes a URI, because paths in a spec are relative to the data root."""
    return Path(text).as_uri() if text.startswith("/") else text or "/"


def name_of(bucket: Any, taken: set[str]) -> str:
    """The default name of an input from that bucket: the last part of its path."""
    text = str(bucket.get("name", "")) if isinstance(bucket, dict) else str(bucket)
    last = _SCHEME.sub("", text).rstrip("/").rpartition("/")[2]
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", last).strip("-")[:_NAME_MAX] or "input"
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}-{number}"
    return found
