"""From a spec to a job: its id, its seed, its external key map and the names of its outputs."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from dsort.containers.registry import codec_of, container_of
from dsort.data.tally import SAMPLES_MAX, Tally
from dsort.errors import KeyMapError, SpecError, SpecProblem, StorageError, TransformError
from dsort.job.output_names import KeptNames, OutputNames
from dsort.naming.patterns import FileLocation
from dsort.options import RunOptions, open_with_settings
from dsort.order.base import NO_PLACES, GivenPlaces
from dsort.pipeline.compile import steps_of
from dsort.spec.model import JobSpec
from dsort.storage.network_policy import FetchPolicy
from dsort.storage.small_objects import read_small
from dsort.transforms.base import Step

if TYPE_CHECKING:
    from dsort.keymap.fetch import TextKind


def with_seed(spec: JobSpec) -> JobSpec:
    """The spec with a seed if its order is random: one is drawn if the spec has none."""
    if not spec.algorithm.takes_seed or spec.algorithm.seed is not None:
        return spec
    return spec.with_seed(str(secrets.randbits(63)))


def load_keymap(spec: JobSpec, tally: Tally, *, fetch: FetchPolicy | None = None) -> GivenPlaces:
    """The external key map of the spec, if it has one, read and parsed; malformed lines are
    counted.

    ``fetch``: the policy for where it may come from. ``KeyMapError`` if the map cannot be read, or
    if the spec aborts at an oddity that the map has.
    """
    if not spec.has_key_map:
        return NO_PLACES
    # Few jobs have a key map, and few of these fetch the key map from the web.
    from dsort.keymap.match import KeyMap, entries_of_mapping, parse_keymap

    if spec.ekm is not None:
        return KeyMap.of(entries_of_mapping(spec.ekm), spec.ekm_default or "")
    from dsort.keymap.fetch import read_text, shown_location

    assert spec.ekm_file
    text = read_text(spec.ekm_file, policy=fetch)
    source = shown_location(spec.ekm_file)
    entries, malformed = parse_keymap(text, separator=spec.ekm_file_sep, source_name=source)
    if malformed:
        if spec.config.ekm_malformed_line == "abort":
            raise KeyMapError(
                f"external key map {source} has {len(malformed)} malformed lines: {malformed[0]}",
                hint="a line is a key, ekm_file_sep (a tab, if it is not set), and a template; "
                "ekm_malformed_line: warn leaves such lines out",
            )
        tally.add("ekm_malformed_line", len(malformed), map(str, malformed[:SAMPLES_MAX]))
    keymap = KeyMap.of(entries, spec.ekm_default or "")
    if not keymap.templates:
        raise KeyMapError(f"external key map {source} has no keys")
    return keymap


def load_formats(spec: JobSpec) -> list[object]:
    """The codecs of the job. The call loads these codecs, and the containers of the job, with their
    libraries."""
    extensions = (spec.input_extension, *(target.extension for target in spec.targets))
    for extension in extensions:
        container_of(extension).load()
    return [codec_of(extension) for extension in extensions]


def load_steps(spec: JobSpec, options: RunOptions) -> tuple[Step, ...]:
    """The steps of the spec, with the content of all texts that they name. ``TransformError`` if
    one cannot be read."""

    def listed(location: FileLocation) -> str:
        from dsort.keymap.fetch import TextKind  # few jobs have lists

        words = ("list of keys", "transform.steps", "give the keys themselves")
        return named_text(location, TextKind(*words, TransformError), options)

    return tuple(step.loaded(listed) for step in steps_of(spec))


def named_text(location: FileLocation, kind: TextKind, options: RunOptions) -> str:
    """The text that a spec names: at a path, a URL, or a place in an object store. ``kind.error``
    if it cannot be read."""
    from dsort.keymap.fetch import TEXT_BYTES_MAX, read_text, scheme_of

    if scheme_of(location) in ("", "file", "http", "https"):
        return read_text(location, kind, policy=options.fetch)
    if options.fetch:
        raise kind.error(
            f"{kind.words} {location} is in an object store, and a spec that came over the "
            "network may not read it there",
            hint=kind.in_place,
        )
    where, _, name = location.rpartition("/")
    try:
        bucket = open_with_settings(where, root=options.root, settings=options.settings)
        data = read_small(bucket, name, bytes_max=TEXT_BYTES_MAX)
    except (SpecError, StorageError) as error:
        raise kind.error(
            f"cannot read {kind.words} {location}: {error}", hint=f"check {kind.field}"
        ) from error
    return data.decode("utf-8", "surrogateescape")


def output_names(
    spec: JobSpec, placed_by: GivenPlaces = NO_PLACES, inputs: Iterable[str] = ()
) -> OutputNames:
    """The names of the job's output shards. ``inputs``: the names of its input shards, once they
    are known. ``SpecError`` if outputs cannot have these names."""
    suffix = spec.names_suffix
    if not placed_by.templates and any(target.template is None for target in spec.targets):
        try:
            return KeptNames.of_inputs(placed_by.shards or inputs, spec.output_extension, suffix)
        except ValueError as error:
            field = "keep_shards" if spec.keep_shards else placed_by.field
            raise SpecError([SpecProblem(field, str(error))]) from None
    if not placed_by.templates:
        counts = [target.count for target in spec.targets]
        totals = () if None in counts else [count or 0 for count in counts]
        templates = [target.template or "" for target in spec.targets]
        places = [target.place for target in spec.targets]
        extensions = [target.extension for target in spec.targets]
        names = OutputNames.of(templates, spec.output_extension, totals, places, extensions)
        return replace(names, suffix=suffix)
    try:
        return replace(OutputNames.of(placed_by.templates, spec.names_extension), suffix=suffix)
    except ValueError as error:
        raise KeyMapError(f"the external key map has a wrong template: {error}") from None
