"""The specs of jobs that amend a result, as ``dsort append`` and ``dsort remove`` run them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict

from dsort.data.columns import Bools
from dsort.data.records import form_records
from dsort.data.text_sets import KeySet, lines_of
from dsort.errors import InputError, SpecError
from dsort.naming.names import readable
from dsort.naming.templates import ShardTemplate, parse_template
from dsort.pipeline.compile import container_options, written_container
from dsort.reading.shard_reader import ShardReader
from dsort.results.manifest import Manifest
from dsort.results.report import JobReport
from dsort.stop_flag import StopFlag
from dsort.storage.bucket import Bucket
from dsort.storage.routed import place_of

__all__ = ["FoundKeys", "Removal", "append_fields", "find_keys", "read_keys", "remove_fields"]

KEYS_BYTES_MAX: Final = 1 << 30
BUFFER_BYTES_MAX: Final = 128 << 20
BUFFER_BYTES_MIN: Final = 1 << 20
NUMBER_MAX: Final = 10**18
DIGITS_MIN: Final = 9
"""If a template has no last name, its numbers may have at least this number of digits."""

_OF_THE_JOB: Final = (
    "inputs",
    "input_bck",
    "input_format",
    "mix",
    "overwrite",
    "remove_stale",
    "dry_run",
    "description",
    "on_shard",
    "amend",
)
"""Fields of a spec that are about one job alone, and not about its records."""


class FoundKeys(Struct, frozen=True):
    """The shards of a result that have one of the wanted keys. ``records``: the number of records
    with such a key. ``missing``: the wanted keys that no record has."""

    shards: tuple[str, ...]
    records: int
    missing: tuple[str, ...]


class Removal(Struct, frozen=True):
    """What a removal did. ``job``: None if no record had one of the keys, so that no job ran."""

    found: FoundKeys
    job: JobReport | None

    def to_dict(self) -> dict[str, object]:
        """The removal in JSON types."""
        return {"found": asdict(self.found), "job": self.job and self.job.to_dict()}


# --- appending -----------------------------------------------------------------------------------


def append_fields(
    base: Manifest,
    place: object,
    source: object,
    *,
    template: str | None = None,
    output_format: str | None = None,
    duplicate_keys: str | None = None,
) -> dict[str, Any]:
    """The fields of a spec that adds the shards of the bucket ``source`` to the result in the
    bucket ``place``, in the way that the result was made. ``source``: if the result joined several
    inputs, a bucket for each, by name. ``template``: the names of the shards to add; None: all
    shards. ``output_format``: the names of the new shards; None: they continue the numbers of the
    result. ``duplicate_keys``: None: as in the spec of the result. ``SpecError``: names cannot
    continue."""
    spec = base.spec
    kept = {name: value for name, value in spec.canonical().items() if name not in _OF_THE_JOB}
    fields: dict[str, Any] = {
        **kept,
        **_sources(base, source, template),
        "output_bck": place,
        "amend": {"job": base.job_id, "by": "append"},
    }
    if duplicate_keys is not None:
        fields["duplicate_keys"] = duplicate_keys
    if spec.keep_shards:
        if output_format is not None:
            raise SpecError("shards of this result keep the names of their inputs")
        return fields
    several = (
        "several outputs" if spec.outputs else "an external key map" if spec.has_key_map else ""
    )
    if several and output_format is not None:
        raise SpecError(f"a result of {several} has several templates, whose names continue")
    if spec.outputs:
        for own, target in zip(fields["outputs"], spec.targets, strict=True):
            own["output_format"] = _continued(base, target.template or "", target.place)
        fields.pop("output_format", None)
    elif spec.has_key_map:
        fields |= _continued_map(base)
    else:
        fields["output_format"] = output_format or _continued(base, spec.output_format or "")
    if not any(target.ends for target in spec.targets):  # an even share for each name, so far
        total = sum(shard.payload_bytes for shard in base.outputs)
        fields["output_shard_size"] = str(max(-(-total // max(len(base.outputs), 1)), 1))
    return fields


def _sources(base: Manifest, source: object, template: str | None) -> dict[str, Any]:
    """The fields about the new shards."""
    if not base.spec.join:
        if isinstance(source, Mapping):
            raise SpecError(
                f"job {base.job_id} joined nothing: its new shards must be in one bucket"
            )
        return {"input_bck": source} | (
            {} if template is None else {"input_format": {"template": template}}
        )
    names = [each.name for each in base.spec.inputs]
    given: Mapping[str, object] = source if isinstance(source, Mapping) else {}
    if {*given} != {*names} or template is not None:
        raise SpecError(
            f"job {base.job_id} joined {len(names)} inputs: each needs a bucket, whose shards are "
            "all added",
            hint=" ".join(f"{name}=BUCKET" for name in names),
        )
    own = base.spec.canonical()["inputs"]
    inputs = [{**each, "input_bck": given[each["name"]]} for each in own]
    for each in inputs:
        each.pop("input_format", None)
    return {"inputs": inputs}


def _continued_map(base: Manifest) -> dict[str, Any]:
    """The fields of a key map that gives records the same templates as in the result, but the names
    of each template continue."""
    spec = base.spec
    if spec.ekm is None:  # a file that a bucket names is never copied into the bucket
        raise SpecError(
            f"the external key map of job {base.job_id} is in a file, {spec.ekm_file}, whose "
            "templates make names that are taken",
            hint="write a map with templates of new names, and a spec with it and amend: {job: "
            "...}",
        )
    fields: dict[str, Any] = {
        "ekm": {_continued(base, text): list(keys) for text, keys in spec.ekm.items()}
    }
    if spec.ekm_default is not None:
        fields["ekm_default"] = _continued(base, spec.ekm_default)
    return fields


def _continued(base: Manifest, text: str, place: str = "") -> str:
    """The template of names that continue after the last shard of ``text``. ``place``: see
    ``storage.routed``."""
    template = parse_template(text)
    counter = template.counter
    if counter is None or template.has_total or counter.step != 1 or len(template.ranges) != 1:
        raise SpecError(
            f"the names of {text} cannot continue: they have no single number that counts by one",
            hint='name the new shards: --names "more-%06d"',
        )
    names = [name for at, name in (place_of(shard.name) for shard in base.outputs) if at == place]
    first = 1 + max((_number_in(name, template) for name in names), default=counter.start - 1)
    first = max(first, counter.start)
    last = 10 ** max(counter.width, len(str(first)), DIGITS_MIN) - 1
    if template.count is not None:
        last = counter.start + template.count - 1
    if first > last:
        raise SpecError(
            f"all {template.count:,} names of {text} are taken",
            hint='name the new shards: --names "more-%06d"',
        )
    width = counter.width if len(str(first)) <= counter.width else len(str(first))
    return f"{template.prefix}{{{first:0{width}d}..{last:0{width}d}}}{counter.gap}"


def _number_in(name: str, template: ShardTemplate) -> int:
    """The number of the shard ``name``, if it is of ``template``; -1 otherwise."""
    rest = name.removeprefix(template.prefix)
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    gap = template.ranges[0].gap
    is_of_it = name.startswith(template.prefix) and rest[len(digits) :].startswith(gap)
    return int(digits) if digits and is_of_it and len(digits) <= len(str(NUMBER_MAX)) else -1


# --- removing ------------------------------------------------------------------------------------


def read_keys(path: Path) -> KeySet:
    """The keys in a file, one a line. ``InputError`` if there are none."""
    try:
        if path.stat().st_size > KEYS_BYTES_MAX:
            raise InputError(f"{path} has more than {KEYS_BYTES_MAX:,} bytes of keys")
        keys = KeySet.of(lines_of(path.read_bytes()))
    except OSError as error:
        raise InputError(f"cannot read the keys in {path}: {error.strerror}") from None
    if not len(keys):
        raise InputError(f"there are no keys in {path}", hint="one record key a line")
    return keys


def find_keys(
    base: Manifest,
    bucket: Bucket,
    keys: KeySet,
    *,
    names: Sequence[str] = (),
    stop: StopFlag,
) -> FoundKeys:
    """The shards of a result that have ``keys``. ``names``: the shards to search; empty: all. Each
    of these shards is read. ``InputError`` where records have no keys."""
    _refuse_apart(base)
    if written_container(base.spec, base.spec.output_extension).numbers_records:
        raise InputError(
            f"records of these {base.spec.output_extension} shards have no keys, they are numbered",
            hint="make the result with key_field, or leave the records out in a job of its own",
        )
    outputs = [each for each in base.outputs if not names or each.name in {*names}]
    largest = max((shard.file_bytes for shard in outputs), default=0)
    buffer_bytes = min(max(largest, BUFFER_BYTES_MIN), BUFFER_BYTES_MAX)
    reader = ShardReader(buffer_bytes, stop, container_options(base.spec))
    seen: Bools = np.zeros(len(keys), np.bool_)
    shards, records = [], 0
    for shard in outputs:
        with reader.open(bucket, shard.name) as opened:
            formed = form_records(opened.members(), "keep")
            own = formed.keys.take(np.flatnonzero(keys.has(formed.keys)))
        if len(own):
            shards.append(shard.name)
            records += len(own)
            seen |= KeySet.of(own).has(keys.keys)
    missing = keys.keys.take(np.flatnonzero(~seen)).tolist()
    return FoundKeys(tuple(shards), records, tuple(map(readable, dict.fromkeys(missing))))


def _refuse_apart(base: Manifest) -> None:
    """``InputError`` for a view, and for a result whose outputs have their own buckets or
    codecs."""
    if base.spec.output == "view":
        raise InputError(
            f"the result of job {base.job_id} is a view, whose records are in its inputs",
            hint="make a view without the keys (drop_keys), and remove the records from the inputs",
        )
    targets = base.spec.targets
    has_buckets = any(target.bucket is not None for target in targets)
    if has_buckets or any(each.extension != base.spec.output_extension for each in targets):
        what = "buckets" if has_buckets else "codecs"
        raise InputError(
            f"outputs of the result of job {base.job_id} have {what} of their own: no records can "
            "be removed from such a result",
            hint="drop the keys (drop_keys) in a job over all inputs",
        )


def remove_fields(
    base: Manifest, place: object, shards: Sequence[str], keys: Path
) -> dict[str, Any]:
    """The fields of a spec that writes ``shards`` of the result in the bucket ``place`` again,
    without the records with keys in the file ``keys``."""
    own = base.spec.canonical()
    as_before = (
        "output_extension",
        "output_compression_level",
        "output_compression",
        "row_group_rows",
        "row_group_bytes",
        "content_defined_chunks",
        "max_expansion",
        "max_mem_usage",
        "index",
        "checksums",
        "lineage",
    )
    fields = {name: own[name] for name in as_before if own.get(name) is not None}
    return {
        **fields,
        "key_field": base.spec.key_field,
        "input_bck": place,
        "output_bck": place,
        "input_format": {"objnames": list(shards)},
        "input_extension": own["output_extension"],
        "keep_shards": True,
        "algorithm": {"kind": "none"},
        "transform": {"steps": [{"drop_keys": {"file": str(keys.absolute())}}]},
        "stray_members": "keep",
        "duplicate_keys": "ignore",
        "missing_shards": "abort",
        "overwrite": True,
        "amend": {"job": base.job_id, "by": "remove"},
    }
