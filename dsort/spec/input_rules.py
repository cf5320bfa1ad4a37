"""Rules about inputs: buckets, streams, loose files, names of shards, shares of each input."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from dsort.containers.registry import check_supported, codec_of, container_of, is_columnar
from dsort.errors import SpecProblem
from dsort.naming.inputs import parse_input_template
from dsort.naming.names import archive_extension
from dsort.spec.algorithms import joined
from dsort.spec.part import Rules, repeated
from dsort.spec.parts import SpecFields
from dsort.spec.target import carrier_extension
from dsort.storage.ref import PIPE, STREAM
from dsort.storage.registry import store_of

if TYPE_CHECKING:
    from dsort.spec.more_inputs import Input

rule = Rules()

SHARD_FIELD: Final = "{shard}"
"""The placeholder for the name of a shard in the arguments of a program."""


PIPED_SHARDS_MAX: Final = 10_000
"""The maximum number of shards that a program writes for an input. Each is a process, and a file in
scratch."""


def input_names(spec: SpecFields) -> Iterator[tuple[str, str]]:
    """(path, name) of the first names and patterns of inputs, whose suffixes show their
    container."""
    for source in () if spec.ingest is not None else spec.sources:
        path, inputs = f"{source.path}input_format", source.format
        if inputs.template is not None:
            for name in parse_input_template(inputs.template).first_names:
                yield f"{path}.template", name
        for index, name in enumerate(inputs.objnames or ()):
            yield f"{path}.objnames[{index}]", name
        if inputs.glob is not None:
            yield f"{path}.glob", inputs.glob


def named_extension(spec: SpecFields) -> str | None:
    """The extension that is set for all inputs, or else the one of the first name or pattern with a
    known suffix."""
    said = {each.input_extension for each in spec.inputs}
    suffixes = [archive_extension(name) for _, name in input_names(spec)]
    return next(filter(None, [*(said if len(said) == 1 else ()), *suffixes]), None)


def with_own_extensions(spec: SpecFields) -> tuple[Input, ...]:
    """The inputs. An input whose names have the suffix of another container than
    ``input_extension`` gets that container."""
    own: dict[int, str] = {}
    for path, name in input_names(spec):
        suffix = archive_extension(name)
        number = int(path[len("inputs[") :].partition("]")[0]) if spec.inputs else -1
        if number < 0 or suffix is None or spec.inputs[number].input_extension is not None:
            continue
        try:
            is_other = container_of(suffix) != container_of(spec.input_extension)
        except ValueError:
            continue  # a rule reports it
        if is_other:
            own.setdefault(number, suffix)
    return tuple(
        each.model_copy(update={"input_extension": own[number]}) if number in own else each
        for number, each in enumerate(spec.inputs)
    )


def suffix_problem(
    path: str, name: str, extension_field: str, extension: str
) -> SpecProblem | None:
    """The problem of a name with a suffix that contradicts ``extension``, if there is one."""
    suffix = archive_extension(name)
    if suffix is None:
        return None
    unsupported = ""
    try:
        check_supported(suffix)
    except ValueError as error:
        unsupported = str(error)
    same = not unsupported and _means_the_same(extension_field, suffix, extension)
    if suffix != extension and not same:
        message = f'ends in "{suffix}", but {extension_field} is "{extension}"'
        return SpecProblem(path, message, unsupported)
    return SpecProblem(path, unsupported) if unsupported else None


def _means_the_same(extension_field: str, suffix: str, extension: str) -> bool:
    """Whether both suffixes belong to one container; inputs are decoded by their own suffixes."""
    if container_of(suffix) != container_of(extension):
        return False
    return extension_field.endswith("input_extension") or codec_of(suffix) == codec_of(extension)


@rule
def _members_are_of_inputs(spec: SpecFields) -> Iterator[SpecProblem]:
    names = {source.name for source in spec.sources}
    for name in spec.ingest.members if spec.ingest is not None else ():
        if name not in names:
            yield SpecProblem(f"ingest.members.{name}", f'"{name}" is no input')


@rule
def _inputs_of_the_web_are_named(spec: SpecFields) -> Iterator[SpecProblem]:
    for source in spec.sources:
        named = source.format.template is not None or source.format.objnames is not None
        named = named or (spec.ingest is not None and spec.ingest.recipe is not None)
        store = store_of(source.bucket.scheme)
        if store is not None and not store.is_listed and not named:
            yield SpecProblem(
                f"{source.path}input_format",
                f"must name the shards of {source.bucket.uri}: a web server does not list them",
                'set input_format.template, e.g. "samples-{000..099}", or input_format.objnames',
            )


@rule
def _inputs_are_read_once(spec: SpecFields) -> Iterator[SpecProblem]:
    streams = [source for source in spec.sources if source.bucket.scheme == STREAM]
    for source in streams:
        if source.format.given:
            text = "cannot be combined with standard input, which is one shard without a name"
            yield SpecProblem(f"{source.path}input_format", text)
    for source in streams[1:]:
        yield SpecProblem(f"{source.path}input_bck", "standard input can be read only once")


@rule
def _programs_know_what_to_write(spec: SpecFields) -> Iterator[SpecProblem]:
    for source in spec.sources:
        if source.bucket.scheme != PIPE:
            continue
        path, wanted = f"{source.path}input_format", source.format
        asks = any(SHARD_FIELD in word for word in json.loads(source.bucket.path))
        if wanted.prefix is not None or wanted.glob is not None:
            text = "must name the shards: a program has no list of the shards that it can write"
            yield SpecProblem(path, text, "set input_format.template or input_format.objnames")
            continue
        names = 0
        if wanted.template is not None:
            names = parse_input_template(wanted.template).count
        elif wanted.objnames is not None:
            names = len(wanted.objnames)
        if names > PIPED_SHARDS_MAX:
            yield SpecProblem(path, f"names {names:,} shards, over {PIPED_SHARDS_MAX:,}")
        elif asks and not names:
            text = f"must name the shards that {SHARD_FIELD} stands for"
            yield SpecProblem(path, text, "set input_format.template or input_format.objnames")
        elif names > 1 and not asks:
            text = f"names {names:,} shards, but the program is not given their names"
            yield SpecProblem(
                path, text, f"write {SHARD_FIELD} where the name belongs in an argument"
            )


@rule
def _one_way_to_name_inputs(spec: SpecFields) -> Iterator[SpecProblem]:
    for source in spec.sources:
        if len(source.format.given) > 1:
            text = f"has {joined(source.format.given)}: only one of them can say which shards go in"
            yield SpecProblem(f"{source.path}input_format", text)


@rule
def _no_template_names_a_shard_twice(spec: SpecFields) -> Iterator[SpecProblem]:
    for source in spec.sources:
        if source.format.template is None or spec.ingest is not None:
            continue
        from dsort.naming.overlap import find_repeats  # needs templates of inputs

        template = parse_input_template(source.format.template)
        for repeat in find_repeats(template, source.extension):
            hint = (
                "the records of the shard would be in the job twice"
                if repeat.name
                else "write numbers of one width, as in {000..099}, and parts that differ in more "
                "than their numbers"
            )
            yield SpecProblem(f"{source.path}input_format.template", str(repeat), hint)


@rule
def _inputs_have_the_extension(spec: SpecFields) -> Iterator[SpecProblem]:
    said: set[str] = set()
    own = {source.path: source.extension for source in spec.sources}
    for path, name in input_names(spec):
        source = path.partition("input_format")[0]
        is_own = own[source] != spec.input_extension
        field = f"{source}input_extension" if is_own else "input_extension"
        problem = suffix_problem(path, name, field, own[source])
        if problem is not None and problem.message not in said:
            said.add(problem.message)
            yield problem


@rule
def _inputs_are_of_one_class(spec: SpecFields) -> Iterator[SpecProblem]:
    """Inputs may have different containers, except for rows of tables, and for samples whose
    columns are in their shards or beside them."""
    extensions = [*dict.fromkeys(source.extension for source in spec.sources)]
    if len(extensions) < 2:
        return  # a container is not loaded to compare it with itself
    if len({container_of(each) for each in extensions}) < 2:
        return
    number, own = next(
        (
            (number, source.extension)
            for number, source in enumerate(spec.sources)
            if container_of(source.extension) != container_of(spec.input_extension)
        ),
        (0, ""),
    )
    path = f"inputs[{number}].input_extension"
    if spec.ingest is not None:
        yield SpecProblem(path, "cannot be combined with ingest: files are read as .tar")
    for extension in extensions:
        each = container_of(extension)
        if each.is_columnar or each.index is not None or each.schemas is not None:
            text = f"{extension} inputs cannot be combined with inputs of another container ({own})"
            yield SpecProblem(path, text, "convert them first: `dsort convert`")
            return
    if is_columnar(carrier_extension(spec)):
        text = (
            f"inputs of several containers cannot be combined with {spec.output_extension} outputs"
        )
        yield SpecProblem("output_extension", text, "write .tar, and convert the result")


@rule
def _each_input_has_one_name_and_one_share(spec: SpecFields) -> Iterator[SpecProblem]:
    for number, name in repeated(each.name for each in spec.inputs):
        yield SpecProblem(f"inputs[{number}].name", f'"{name}" is the name of two inputs')
    for number, each in enumerate(spec.inputs):
        given = [name for name in ("weight", "repeat", "records") if getattr(each, name)]
        if len(given) > 1:
            text = f"only one of {joined(given)} can say how many records come out"
            yield SpecProblem(f"inputs[{number}].{given[1]}", text)
