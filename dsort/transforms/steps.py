"""All steps by their kind."""

from __future__ import annotations

from typing import Final

from dsort.registry import Registry
from dsort.transforms.base import Step
from dsort.transforms.choose import DropKeys, Filter, KeepKeys, Sample, Slice
from dsort.transforms.fields import Fields, Require
from dsort.transforms.programs import Exec, FlatMap, Http, Map
from dsort.transforms.rekey import Rekey

__all__ = ["STEPS", "register"]

STEPS: Final[Registry[type[Step]]] = Registry(
    "dsort.steps",
    lambda step: (step.kind,),
    (
        Filter,
        KeepKeys,
        DropKeys,
        Sample,
        Slice,
        Require,
        Fields,
        Rekey,
        Map,
        FlatMap,
        Exec,
        Http,
    ),
)


def register(step: type[Step]) -> None:
    """Add a step: specs that are read from now on may name it. Worker processes have to load its
    module, too. ``ValueError`` if there is another step of this kind already. A package names its
    steps in the entry points ``dsort.steps`` instead."""
    STEPS.register(step)
