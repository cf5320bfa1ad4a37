"""Refuse output names that an input or another output has, also if a spec names one bucket in two
ways."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field

from dsort.errors import SpecError, SpecProblem
from dsort.job.output_names import OutputNames
from dsort.moves.input_shard import InputShard
from dsort.storage.bucket import Bucket
from dsort.storage.ref import BucketRef
from dsort.storage.routed import parted, place_of, placed_at

NAMES_CHECKED_EARLY_MAX = 10_000
"""The number of names of an output template that are compared with the inputs before anything is
read; all names that are used are compared before anything is written."""


class BucketIdentity(Struct, eq=False):
    """A bucket, and the object for which each name in it stands. Two spellings of one bucket lead
    to the same objects."""

    bucket: Bucket
    ref: BucketRef
    _real: dict[Path, Path] = field(default_factory=dict)

    def identity(self, name: str) -> str:
        """A text that identifies the object. In a directory: its real path; in a store: endpoint
        and key."""
        if not self.ref.is_directory:
            return f"{self.ref.endpoint_url or self.ref.scheme}/{self.ref.path}/{name}"
        path = self.bucket.local_path(name or "x")
        assert path  # a directory has files
        if path.parent not in self._real:
            self._real[path.parent] = path.parent.resolve()
        return str(self._real[path.parent] / (path.name if name else ""))

    def is_same(self, other: BucketIdentity) -> bool:
        """Whether both are one bucket."""
        return self.identity("") == other.identity("")


class InputIdentities(Struct, eq=False):
    """The buckets of a job's inputs by name ("" if there is only one), and the object that each
    shard is."""

    buckets: Mapping[str, BucketIdentity]

    def found(self, shard: str) -> tuple[BucketIdentity, str]:
        """(the bucket, the object in it) of a shard."""
        if "" in self.buckets:
            return self.buckets[""], shard
        at, inside = parted(shard)
        return self.buckets[at], inside

    def identity(self, shard: str) -> str:
        """A text that identifies the object."""
        bucket, inside = self.found(shard)
        return bucket.identity(inside)

    def names_in(self, targets: OutputIdentities, shards: Iterable[InputShard]) -> set[str]:
        """The ``shards`` that are objects in the buckets ``targets``, by their names there."""
        found: set[str] = set()
        for place, target in targets.buckets.items():
            if any(each.is_same(target) for each in self.buckets.values()):
                inside = (self.found(shard.name) for shard in shards)
                found |= {placed_at(place, name) for each, name in inside if each.is_same(target)}
        return found


class OutputIdentities(Struct, eq=False):
    """The buckets of a job's outputs by place, "" the main one (see ``storage.routed``),
    and the object that each name stands for."""

    buckets: Mapping[str, BucketIdentity]

    def identity(self, name: str) -> str:
        """A text that identifies the object."""
        place, inside = place_of(name)
        return self.buckets[place].identity(inside)


def refuse_shards_twice(inputs: Iterable[InputShard], source: InputIdentities) -> None:
    """``SpecError`` if one object is a shard of two inputs."""
    if len(source.buckets) == 1:
        return
    known: dict[str, str] = {}
    for shard in inputs:
        other = known.setdefault(source.identity(shard.name), shard.name)
        if other != shard.name:
            text = f"{other} and {shard.name} are one object"
            hint = "its records would be in the job twice"
            raise SpecError([SpecProblem("inputs", text, hint)])


def refuse_early_collisions(
    inputs: Sequence[InputShard],
    source: InputIdentities,
    names: OutputNames,
    target: OutputIdentities,
) -> None:
    """Call :func:`refuse_collisions` for the first names of a template, before any input is
    read."""
    taken = source.names_in(target, inputs)
    if not taken:
        return
    share = NAMES_CHECKED_EARLY_MAX // len(names.templates)
    first = [name for group in range(len(names.templates)) for name in names.some(group, 0, share)]
    refuse_collisions(inputs, source, [name for name in first if name in taken], target)


def refuse_collisions(
    inputs: Iterable[InputShard],
    source: InputIdentities,
    outputs: Iterable[str],
    target: OutputIdentities,
) -> None:
    """``SpecError`` if an output would have the name of an input, or of another output."""
    taken: dict[str, str] = {}
    for shard in inputs:
        taken[source.identity(shard.name)] = shard.name
        bucket, inside = source.found(shard.name)
        path = bucket.bucket.local_path(inside)
        if path and path.is_symlink():  # the target of the link is the input as well
            taken[str(path.resolve())] = shard.name
    seen: set[str] = set()
    for name in outputs:
        identity = target.identity(name)
        if identity in seen:
            raise SpecError(
                [
                    SpecProblem(
                        "outputs" if len(target.buckets) > 1 else "ekm",
                        f"two output shards would be named {name}",
                        "two buckets are one, under two names"
                        if len(target.buckets) > 1
                        else "templates of a key map must not produce the same names",
                    )
                ]
            )
        seen.add(identity)
        clash = taken.get(identity)
        if clash:
            raise SpecError(
                [
                    SpecProblem(
                        "output_format",
                        f"the output shard {name} would replace the input shard {clash}",
                        "use another output_format or another output_bck",
                    )
                ]
            )
