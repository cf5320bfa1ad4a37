"""The carrier: the container of records between reading and writing, and the outputs that are
converted from it only as they are written."""

from __future__ import annotations

from typing import Final

from dsort.containers.registry import container_of
from dsort.spec.parts import SpecFields
from dsort.spec.target import Target

__all__ = ["CARRIER", "carrier_extension", "is_late", "late_targets"]

CARRIER: Final = ".tar"
"""The carrier of records if their outputs differ, or if joined records cannot be assembled in the
container in which they are stored."""


def carrier_extension(spec: SpecFields) -> str:
    """The carrier of the records of ``spec``: the container of the outputs, if all have the same
    one; that of the first, if all are of tables; else tar."""
    targets = spec.targets
    if spec.join is None and len({each.extension for each in targets}) == 1:
        return targets[0].extension  # without loading its container: most specs are like this
    containers = [container_of(each.extension) for each in targets]
    if spec.join is not None and not all(each.is_of_members for each in containers):
        return CARRIER
    alike = all(each == containers[0] for each in containers)
    if alike or all(each.is_columnar for each in containers):
        return targets[0].extension
    return CARRIER


def is_late(spec: SpecFields, target: Target) -> bool:
    """Whether the records of an output are converted as they are written."""
    extension = carrier_extension(spec)
    if target.extension == extension:
        return False
    carrier = container_of(extension)
    return not carrier.is_columnar and container_of(target.extension) != carrier


def late_targets(spec: SpecFields) -> tuple[Target, ...]:
    """The outputs whose records are converted as they are written."""
    return tuple(each for each in spec.targets if is_late(spec, each))
