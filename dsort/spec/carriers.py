"""What records travel in, from where they are read to where they are written, and which outputs are
converted only then."""

from __future__ import annotations

from typing import Final

from dsort.containers.registry import container_of
from dsort.spec.outputs import Target
from dsort.spec.parts import SpecFields

__all__ = ["CARRIER", "carrier_extension", "is_late", "late_targets"]

CARRIER: Final = ".tar"
"""What records travel in where their outputs differ, or where what they are joined from cannot be
put together as it is stored."""


def carrier_extension(spec: SpecFields) -> str:
    """What the records of ``spec`` travel in: the container of the outputs, where all have one;
    where all are of tables, that of the first; else tar."""
    targets = spec.targets
    if spec.join is None and len({each.extension for each in targets}) == 1:
        return targets[0].extension  # without loading its container: most specs are such
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
