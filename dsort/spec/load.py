"""Loads a ``JobSpec`` from a file, standard input, a text or a mapping, or lists all problems."""

from __future__ import annotations

import copyreg
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TextIO

from msgspec import Struct
from msgspec.structs import replace
from pydantic import ValidationError

from dsort.errors import SpecError, SpecProblem
from dsort.naming.names import shortened
from dsort.sizes import format_bytes
from dsort.spec.dialects import translate
from dsort.spec.fields import anchored, located
from dsort.spec.inputs import JobConfig
from dsort.spec.model import Draft, JobSpec, current_job_spec
from dsort.spec.part import describe, path_of
from dsort.spec.syntax import looks_like_json, parse_json

if TYPE_CHECKING:
    from dsort.spec.transform import Lookup, Transform

SPEC_BYTES_MAX: Final = 1024 * 1024

_DEPTH_MAX: Final = 8  # a spec has four levels
_FIELD: Final = r"\s*[A-Za-z_]\w*:\s+\S"
_SOURCE_HINT: Final = "a spec is a path, - for standard input, or the text itself (JSON or YAML)"
_CONFIG_FIELDS: Final = tuple(JobConfig.model_fields)


class LoadedSpec(Struct, frozen=True):
    """A spec, and warnings for its writer: older names, fields without effect."""

    spec: JobSpec
    warnings: tuple[str, ...]


def load_spec(
    source: str | Path,
    *,
    stdin: TextIO | None = None,
    overrides: Mapping[str, Any] | None = None,
    ais_is_there: bool = False,
    transforms: Lookup | None = None,
) -> LoadedSpec:
    """The spec at ``source``: a path, ``-`` for ``stdin``, or the text itself, in JSON or YAML.

    Files named ``.json`` are JSON, ``.yaml`` and ``.yml`` are YAML; anything else is JSON if it
    begins with ``{`` or ``[``, and YAML otherwise. A relative ``ekm_file`` in a spec file is
    relative to that file. ``overrides``: fields, by today's names, that replace those in the spec,
    such as the buckets of a command line. ``ais_is_there``: an endpoint of AIStore is configured,
    so that buckets of provider ``ais`` are AIStore's; else they are directories. ``transforms``:
    finds the transforms that the spec names. ``SpecError`` with every problem at once.
    """
    fields, directory = read_fields(source, stdin=stdin)
    return _parse(fields, overrides or {}, directory, ais_is_there, transforms=transforms)


def read_fields(
    source: str | Path, *, stdin: TextIO | None = None
) -> tuple[Mapping[str, Any], Path | None]:
    """The fields of the spec at ``source`` as they are written, and the directory of its file.
    ``source`` is as in :func:`load_spec`. ``SpecError`` if they cannot be read."""
    path: Path | None = None
    if isinstance(source, str) and _is_text(source):
        name, text = "spec", source
    elif str(source) == "-":
        name, text = "standard input", _read_stdin(stdin)
    else:
        path = Path(source)
        name, text = str(path), _read_file(path)
    _check_size(len(text.encode(errors="surrogatepass")), name)
    value = _parse_text(text, name, path.suffix.lower() if path else "")
    if not isinstance(value, Mapping):
        raise SpecError(
            f"{name}: a spec is an object of fields, not {describe(value)}", hint=_SOURCE_HINT
        )
    return value, path.parent if path else None


def parse_spec(
    mapping: Mapping[str, Any],
    *,
    overrides: Mapping[str, Any] | None = None,
    reactions: Mapping[str, Any] | None = None,
    ais_is_there: bool = False,
    transforms: Lookup | None = None,
) -> LoadedSpec:
    """The spec in ``mapping`` (in JSON types), read as in :func:`load_spec`. ``SpecError`` with
    every problem at once. ``reactions``: fields of ``Config`` for specs that do not have them.
    ``transforms``: as in :func:`load_spec`."""
    if not isinstance(mapping, Mapping):
        raise SpecError(f"a spec is an object of fields, not {describe(mapping)}")
    return _parse(mapping, overrides or {}, None, ais_is_there, reactions or {}, transforms)


def read_transform(fields: Mapping[str, Any]) -> tuple[dict[str, Any], Transform]:
    """A definition in its stored form, with every default, and its transform. ``SpecError`` with
    all of its problems."""
    for name in ("use", "digest", "allowed_by"):
        if name in fields:
            raise SpecError([SpecProblem(name, "is for specs only", "a definition has steps")])
    tried = {"input_bck": "in", "output_bck": "out", "keep_shards": True, "transform": {**fields}}
    try:
        transform = parse_spec(tried).spec.transform
    except SpecError as error:
        problems = [
            replace(each, path=each.path.removeprefix("transform").lstrip("."))
            for each in error.problems
        ]
        raise SpecError(problems) from None
    assert transform is not None
    return transform.canonical(), transform


def _is_text(source: str) -> bool:
    """Whether ``source`` is the text of a spec and not a path: JSON, several lines, or one line
    that begins like a field of YAML. File names rarely begin like that; if such a file exists,
    ``source`` is a path."""
    if source.lstrip().startswith("{") or "\n" in source.strip():
        return True
    if re.match(_FIELD, source) is None:
        return False
    try:
        return not Path(source).is_file()
    except OSError:  # no file can have such a name
        return True


# --- text ----------------------------------------------------------------------------------------


def _read_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(SPEC_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise SpecError(
            f"cannot read the spec {shortened(str(path))}: {reason}", hint=_SOURCE_HINT
        ) from None
    # One byte more than the limit was read, so a longer file shows here.
    _check_size(len(data), str(path))
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: not UTF-8 at byte {error.start}") from None


def _read_stdin(stdin: TextIO | None) -> str:
    if stdin is None:
        raise SpecError("there is no standard input to read the spec from")
    try:
        return stdin.read(SPEC_BYTES_MAX + 1).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise SpecError(f"standard input: not UTF-8 at byte {error.start}") from None


def _check_size(size_bytes: int, name: str) -> None:
    if size_bytes > SPEC_BYTES_MAX:
        raise SpecError(
            f"{name}: too big for a spec (max {format_bytes(SPEC_BYTES_MAX)})",
            hint="put a large key map into a file of its own: ekm_file",
        )


def _parse_text(text: str, name: str, suffix: str) -> Any:
    is_json = suffix == ".json" or (suffix not in (".yaml", ".yml") and looks_like_json(text))
    if is_json:
        return parse_json(text, name)
    from dsort.spec.yaml_text import parse_yaml  # loads PyYAML, which most jobs do not need

    return parse_yaml(text, name)


# --- fields --------------------------------------------------------------------------------------


def _parse(
    mapping: Mapping[str, Any],
    overrides: Mapping[str, Any],
    directory: Path | None,
    ais_is_there: bool,
    reactions: Mapping[str, Any] = MappingProxyType({}),
    transforms: Lookup | None = None,
) -> LoadedSpec:
    odd = [*_shape_problems(mapping, ())]
    if odd:
        raise SpecError(odd)
    translation = translate(mapping, _CONFIG_FIELDS)
    config = translation.fields.get("Config", {})
    if reactions and isinstance(config, Mapping):
        translation.fields["Config"] = {**reactions, **config}
    for name, value in overrides.items():
        translation.fields[name] = value
        translation.written.pop(name, None)
    if directory is not None:
        anchor_steps(translation.fields.get("transform"), directory)
    unknown: list[SpecProblem] = []
    if "transform" in translation.fields:
        from dsort.spec.transform import resolve_use

        transform, unknown = resolve_use(translation.fields["transform"], transforms)
        translation.fields["transform"] = transform
    draft = Draft(ais_is_there=ais_is_there, directory=directory)
    spec, problems = _validate(translation.fields, draft)
    problems = translation.problems + [
        replace(each, path=translation.as_written(each.path)) for each in (*unknown, *problems)
    ]
    if spec is None or problems:
        raise SpecError(list(dict.fromkeys(problems)))
    return LoadedSpec(spec, (*translation.warnings, *draft.warnings))


def _shape_problems(value: object, place: tuple[int | str, ...]) -> Iterator[SpecProblem]:
    """Problems that later steps could not handle: names that are not texts, texts that UTF-8 cannot
    encode, and too deeply nested values."""
    if len(place) > _DEPTH_MAX:
        yield SpecProblem(path_of(place), "nested too deeply")
    elif isinstance(value, str) and not _is_utf8(value):
        yield SpecProblem(path_of(place), f"{value!a} cannot be written as UTF-8")
    elif isinstance(value, Mapping):
        for key, each in value.items():
            if isinstance(key, str) and _is_utf8(key):
                yield from _shape_problems(each, (*place, key))
            else:
                yield SpecProblem(path_of(place), f"the field name {key!a} is no text")
    elif isinstance(value, (list, tuple)):
        for index, each in enumerate(value):
            yield from _shape_problems(each, (*place, index))


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def anchor_steps(transform: object, directory: Path) -> None:
    """Make paths in the steps of ``transform`` relative to ``directory``, the directory of its
    file."""
    from dsort.spec.algorithms import type_of_options
    from dsort.transforms.steps import STEPS

    steps = transform.get("steps") if isinstance(transform, dict) else None
    for step in steps if isinstance(steps, list) else ():
        for kind, options in step.items() if isinstance(step, dict) else ():
            known = STEPS.find(kind)
            if not isinstance(options, dict) or known is None:
                continue
            for name, location in located(options, type_of_options(known)):
                options[name] = anchored(location, directory)
            place = options.get("python")
            if isinstance(place, str) and re.fullmatch(r"[^:]+\.py:\w+", place):
                options["python"] = anchored(place, directory)


def _validate(fields: dict[str, Any], draft: Draft) -> tuple[JobSpec | None, list[SpecProblem]]:
    try:
        return current_job_spec().model_validate(fields, context=draft), []
    except SpecError as error:
        return None, list(error.problems)
    except ValidationError as error:
        from dsort.spec.field_problems import all_problems, load_installed  # loads all parts

        if load_installed():
            return _validate(fields, draft)
        return None, all_problems(fields, error.errors(include_url=False), draft)


def _read_back(canonical: Mapping[str, Any]) -> JobSpec:
    return parse_spec(canonical).spec


# The classes of some parts are made anew in each process, so a spec travels in its canonical form.
copyreg.pickle(JobSpec, lambda spec: (_read_back, (spec.canonical(),)))
