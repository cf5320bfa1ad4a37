"""dsort shuffles, sorts and reshards sharded training data inside a bucket.

import dsort
report = dsort.run(dsort.load_spec("spec.json"))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsort.api import load_spec, plan, resume, run
    from dsort.job.events import JobReport, PlanReport
    from dsort.options import RunOptions
    from dsort.spec.model import JobSpec

__all__ = [
    "JobReport",
    "JobSpec",
    "PlanReport",
    "RunOptions",
    "load_spec",
    "plan",
    "resume",
    "run",
]

_HOMES = {
    "JobReport": ("dsort.job.events", "JobReport"),
    "JobSpec": ("dsort.spec.model", "JobSpec"),
    "PlanReport": ("dsort.job.events", "PlanReport"),
    "RunOptions": ("dsort.options", "RunOptions"),
    "load_spec": ("dsort.api", "load_spec"),
    "plan": ("dsort.api", "plan"),
    "resume": ("dsort.api", "resume"),
    "run": ("dsort.api", "run"),
}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used: ``dsort --help`` needs none of them."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module, attribute = _HOMES[name]
    return getattr(import_module(module), attribute)
