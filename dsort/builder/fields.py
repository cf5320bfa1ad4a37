"""The fields that calls have set: frozen, and checked once there is a place to write to."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, Self

from dsort.builder.words import in_words_of_calls
from dsort.containers.registry import is_columnar
from dsort.errors import SpecError, SpecProblem
from dsort.naming.names import archive_extension, codec_extension, shortened
from dsort.spec.load import LoadedSpec, parse_spec
from dsort.spec.named import Lookup, NamedTransform

__all__ = ["BuilderFields", "problem"]

_REPR_MAX: Final = 300
_OF_INPUTS: Final = ("name", "weight", "repeat", "records", "join")
"""Fields of an input that a spec has on its top level, for all inputs together."""
_CODECS: Final = {"gzip": ".gz", "zstd": ".zst", "lz4": ".lz4"}


@dataclass(frozen=True, repr=False)
class BuilderFields:
    """``given``: fields of the spec, with all inputs in ``inputs`` and the codec in ``codec``.
    ``calls``: the calls that set them, as Python; ``is_whole``: whether the place to write to is
    set."""

    given: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    calls: tuple[str, ...] = ()
    order_call: str = "shuffle"
    is_whole: bool = False

    __hash__ = None  # type: ignore[assignment]  # its values are lists and mappings

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
        kept = {name: value for name, value in values.items() if value is not None}
        arguments = kept if shown is None else shown
        made = replace(
            self,
            given=MappingProxyType({**self.given, **copy.deepcopy(kept)}),
            calls=(*self.calls, _call_text(call, arguments)),
        )
        return made._checked()

    def _checked(self) -> Self:
        if self.is_whole:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # `spec()` gives the warnings again
                self._load(_any_transform)
        return self

    def _load(self, transforms: Lookup) -> LoadedSpec:
        from dsort.options import default_options

        fields = self.to_dict()
        if not self.is_whole:
            raise SpecError(
                f"{self!r} says nowhere to write", hint='.write("bucket/shard-%06d.tar", size=...)'
            )
        try:
            return parse_spec(
                fields,
                ais_is_there=default_options().settings.ais_is_there,
                transforms=transforms,
            )
        except SpecError as error:
            inputs = [_call_name(each) for each in self.calls if _gives_input(each)]
            found = in_words_of_calls(error.problems, fields, self.order_call, inputs)
            raise SpecError(found) from None

    def to_dict(self) -> dict[str, Any]:
        """The fields of the spec as in a spec file; JSON-able if the given values are. Defaults are
        not included."""
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


def problem(path: str, message: str, hint: str = "") -> SpecError:
    """The error for an argument that is invalid in any spec."""
    return SpecError([SpecProblem(path, message, hint)])
