"""A row of the table of exclusions, and two kinds of names that rows have beside fields: cases,
which are true or false of a spec, and facts for messages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Final

from msgspec import Struct

from dsort.containers.base import ContainerOptions
from dsort.containers.registry import container_of, is_columnar
from dsort.errors import SpecProblem
from dsort.order.algorithms import Shuffle
from dsort.sidecars.base import Sidecar
from dsort.sidecars.kinds import kinds_of
from dsort.spec.algorithms import joined
from dsort.spec.inputs import JobConfig
from dsort.spec.part import Part, UnusableError
from dsort.spec.parts import SpecFields
from dsort.spec.target import Target, carrier_extension, late_targets
from dsort.storage.ref import STREAM


def _leaves_duplicates_out(spec: SpecFields) -> bool:
    drops = spec.deduplicate is not None or spec.config.duplicate_keys == "drop"
    return drops and bool(spec.exact or spec.stratify)


def _shuffles_by(name: str) -> Callable[[SpecFields], object]:
    """Whether the spec has the option ``name`` of a shuffle; other rules refuse the option for
    other algorithms."""
    return lambda spec: spec.algorithm.kind == Shuffle.kind and getattr(spec.algorithm, name)


def _shares_of_at_most_a_size(spec: SpecFields) -> bool:
    return any(
        target.asked_count is not None and target.count is None and target.is_at_most
        for target in spec.targets
    )


def _sidecars(spec: SpecFields, wanted: Callable[[Sidecar], bool]) -> list[str]:
    return [each.kind for each in kinds_of(spec.index) if wanted(each)]


def _tables(spec: SpecFields) -> list[str]:
    """The extensions of tables that a job reads, or that are its carrier."""
    return [*filter(is_columnar, (spec.input_extension, carrier_extension(spec)))]


def late_reason(spec: SpecFields) -> str:
    """The reason why a job converts late, in words that follow "cannot be combined with"."""
    own = [each.extension for each in late_targets(spec)]
    if spec.join is not None:
        return f"join into {joined([*dict.fromkeys(own)])}"
    return "outputs of several containers"


def _removes_keys_alone(spec: SpecFields) -> bool:
    return (
        spec.keep_shards
        and [step.kind for step in spec.steps] == ["drop_keys"]
        and spec.algorithm.kind == "none"
        and not spec.inputs
        and spec.require is None
        and spec.deduplicate is None
        and spec.input_bck == spec.output_bck
        and spec.input_extension == spec.output_extension
        and spec.overwrite
    )


def _numbers_records(spec: SpecFields) -> bool:
    options = ContainerOptions(key_field=spec.key_field)
    return container_of(spec.output_extension).with_options(options).numbers_records


def _parts_rows_by_more_than_a_column(spec: SpecFields) -> bool:
    if not (is_columnar(spec.input_extension) and is_columnar(carrier_extension(spec))):
        return False
    from dsort.transforms.outputs import MemberClass, class_by  # loads NumPy

    return not isinstance(class_by(spec.stratify or ""), MemberClass)


def _has_keys_inside(spec: SpecFields) -> bool:
    """Whether each copy of a record would contain the key of that record."""
    container = container_of(carrier_extension(spec))
    containers = {container_of(source.extension) for source in spec.sources}
    is_moved = container in containers and not is_columnar(spec.input_extension)
    return is_moved and bool(spec.key_field) and container.names is None


def _makes_lines(spec: SpecFields) -> bool:
    made, read = (container_of(name) for name in (spec.output_extension, spec.input_extension))
    return made.begins_bare and not read.begins_bare


def _makes_samples(spec: SpecFields) -> bool:
    made, read = (container_of(name) for name in (spec.output_extension, spec.input_extension))
    return made.schemas is not None and made != read


def _table_outputs(spec: SpecFields) -> list[str]:
    return [each.extension for each in spec.targets if is_columnar(each.extension)]


def _uncounted(spec: SpecFields) -> list[Target]:
    return [target for target in spec.targets if target.asked_count is None]


def _uncounted_of_several(spec: SpecFields) -> str:
    uncounted = _uncounted(spec)
    return f": {uncounted[0].name} has none" if uncounted and spec.outputs else ""


CASES: Final[Mapping[str, Callable[[SpecFields], object]]] = {
    "algorithm.batches": _shuffles_by("batches"),
    "algorithm.interleave": _shuffles_by("interleave"),
    "a key map that must have all keys": lambda spec: (
        spec.has_key_map and spec.config.ekm_missing_key == "abort"
    ),
    "a key map": lambda spec: spec.has_key_map,
    "amend by remove": lambda spec: spec.amend and spec.amend.by == "remove",
    "an algorithm": lambda spec: spec.algorithm.kind != "none",
    "an order that is decided before records meet": lambda spec: (
        not (spec.algorithm.type.joins or spec.algorithm.type.joins_by_places)
    ),
    "amend by append": lambda spec: spec.amend and spec.amend.by == "append",
    "an external key map": lambda spec: spec.has_key_map and not spec.outputs,
    "containers with an index beside shards": lambda spec: (
        container_of(spec.output_extension).index is not None
    ),
    "conversions as shards are written": late_targets,
    "deduplicate by a field": lambda spec: (
        spec.deduplicate and not isinstance(spec.deduplicate.by, str)
    ),
    "deduplicate by content": lambda spec: spec.deduplicate and spec.deduplicate.by == "content",
    "deduplicate by other than content": lambda spec: (
        spec.deduplicate and spec.deduplicate.by != "content"
    ),
    "deduplicate by key": lambda spec: spec.deduplicate and spec.deduplicate.by == "key",
    "exact or stratify where duplicates are left out": _leaves_duplicates_out,
    "fewer than two inputs": lambda spec: len(spec.inputs) < 2,
    "files without classes": lambda spec: spec.ingest and spec.ingest.layout != "folders",
    "files without a recipe": lambda spec: spec.ingest and spec.ingest.recipe is None,
    "folders": lambda spec: spec.ingest and spec.ingest.layout == "folders",
    "layout: metadata": lambda spec: spec.ingest and spec.ingest.layout == "metadata",
    "index of files that need SHA-256": lambda spec: _sidecars(spec, lambda it: it.needs_sha256),
    "index of files that list shards": lambda spec: _sidecars(spec, lambda it: it.lists_shards),
    "inputs that are no tars": lambda spec: spec.input_extension != ".tar",
    "keys that are in records": _has_keys_inside,
    "mix of no inputs": lambda spec: not spec.inputs,
    "mix without a number": lambda spec: (
        spec.mix and spec.mix.records is None and spec.mix.stop is None
    ),
    "no input": lambda spec: not spec.inputs and not spec.gives("input_bck"),
    "no join": lambda spec: spec.join is None,
    "more than keys to remove": lambda spec: not _removes_keys_alone(spec),
    "numbered records without keys to remove": lambda spec: (
        _removes_keys_alone(spec) and _numbers_records(spec)
    ),
    "no external key map": lambda spec: not spec.has_key_map,
    "shards without SHA-256": lambda spec: spec.checksums != "sha256" and spec.output != "view",
    "no lines that are made": lambda spec: not _makes_lines(spec),
    "no samples that are made": lambda spec: not _makes_samples(spec),
    "no output bucket": lambda spec: spec.named_output_bck is None,
    "no overwrite": lambda spec: not spec.overwrite,
    "no fractions": lambda spec: all(each.fraction is None for each in spec.outputs),
    "output_bck": lambda spec: spec.output_bck.is_stream,
    "outputs that have buckets of their own": lambda spec: spec.has_buckets_of_outputs,
    "outputs that are no tables": lambda spec: not _table_outputs(spec),
    "outputs that are no Parquet": lambda spec: ".parquet" not in _table_outputs(spec),
    "recipe": lambda spec: spec.ingest and spec.ingest.recipe is not None,
    "row groups of more than 1GB": lambda spec: (
        spec.row_group_bytes is not None and spec.row_group_bytes > 1 << 30
    ),
    "several outputs": lambda spec: len(spec.outputs) > 1,
    "standard output alone": lambda spec: spec.output_bck.scheme == STREAM,
    "streams as inputs": lambda spec: any(each.bucket.is_stream for each in spec.sources),
    "shares of at most a size": _shares_of_at_most_a_size,
    "shards that are not counted": lambda spec: (
        not spec.output_bck.is_stream and (_uncounted(spec) or spec.keep_shards)
    ),
    "shards that end nowhere": lambda spec: not any(each.ends for each in spec.targets),
    "standard output": lambda spec: spec.output_bck.is_stream,
    "tables": _tables,
    "tables on the way": lambda spec: is_columnar(carrier_extension(spec)),
    "tables to tables by more than a column": _parts_rows_by_more_than_a_column,
    "tables to read": lambda spec: is_columnar(spec.input_extension),
    "weights": lambda spec: spec.weighs_inputs,
    "weights that make copies": lambda spec: spec.copies_records,
}
"""By name of a case: whether a spec is in the case."""

FACTS: Final[Mapping[str, Callable[[SpecFields], str]]] = {
    "carrier": carrier_extension,
    "input": lambda spec: spec.input_extension,
    "kind": lambda spec: spec.algorithm.kind,
    "late": late_reason,
    "listing": lambda spec: joined(_sidecars(spec, lambda each: each.lists_shards)),
    "output": lambda spec: spec.output_extension,
    "table": lambda spec: _tables(spec)[0],
    "uncounted": _uncounted_of_several,
    "wanting": lambda spec: joined(_sidecars(spec, lambda each: each.needs_sha256)),
}
"""Facts of a spec that messages name."""


class Excludes(Struct, frozen=True):
    """``fields`` that cannot be combined with ``other``.

    A field is a path (``ingest.labels``; ``inputs[].join``, of each input), excluded where the spec
    sets it to something else than its default; or a path and a value (``duplicate_keys: rename``).
    ``other`` is a field, too. Both may also be names in :data:`CASES`; such a case may be that the
    spec lacks something that the field needs. The message is "FIELD cannot be combined with OTHER",
    then ``why``. ``text`` replaces this message; names of :data:`FACTS` in braces are filled in.
    ``path``: the path of the problem, if it is not the field's."""

    fields: tuple[str, ...]
    other: str
    why: str = ""
    hint: str = ""
    text: str = ""
    path: str = ""

    def problems(self, spec: SpecFields) -> Iterator[SpecProblem]:
        """A problem for each of the fields, if ``spec`` has the field and ``other``. A field that
        is already known to be wrong has none."""
        for field in self.fields:
            try:
                # The field is looked up first, because looking up ``other`` may load containers.
                if (places := _places(spec, field)) and _places(spec, self.other):
                    text = self.message(field)
                    text = re.sub(r"\{(\w+)\}", lambda fact: FACTS[fact[1]](spec), text)
                    for place in places:
                        path = self.path or place
                        if path == "weights":
                            path = "inputs" if spec.mix is None else "mix"
                        yield SpecProblem(path, text, self.hint)
            except UnusableError:
                continue

    def message(self, field: str) -> str:
        """The message about one of the fields."""
        value = field.partition(": ")[2]
        is_clause = self.why.startswith(("which ", "whose ")) and not self.why.endswith("?")
        why = f"{',' if is_clause else ':'} {self.why}" if self.why else ""
        return self.text or f"{value} cannot be combined with {self.other}{why}".lstrip()


@cache
def _field(name: str) -> tuple[str, str, str]:
    """(part, field in it, value) of ``name``: a path, and perhaps a value."""
    path, _, wanted = name.partition(": ")
    owner, _, field = path.rpartition(".")
    return "config" if field in JobConfig.model_fields else owner, field, wanted


def _places(spec: SpecFields, name: str) -> Sequence[str]:
    """The paths at which the spec has the field ``name``; for a case, its name."""
    if name in CASES:
        return (name,) if CASES[name](spec) else ()
    owner, field, wanted = _field(name)
    if "[]" in owner:
        parts = _of_each(spec, owner)
        return [f"{place}.{field}" for place, part in parts if _has(part, field, wanted)]
    part = getattr(spec, owner) if owner else spec
    return (name.partition(": ")[0],) if _has(part, field, wanted) else ()


def _of_each(spec: SpecFields, owner: str) -> Iterator[tuple[str, Part]]:
    """(path, part) of each of the inputs, the outputs, or of a part of each of them."""
    items, _, inner = owner.replace("[].", "[]").partition("[]")
    for number, each in enumerate(getattr(spec, items)):
        yield owner.replace("[]", f"[{number}]"), getattr(each, inner) if inner else each


def _has(part: Part | None, field: str, wanted: str) -> bool:
    if part is None or not part.gives(field):
        return False
    value = getattr(part, field)
    if wanted:
        return wanted in value if isinstance(value, tuple) else bool(value == wanted)
    default = type(part).model_fields[field].get_default(call_default_factory=True)
    return bool(value != default)
