"""Where a schedule's runs read and write, as far as all of them share it; and where its ``latest``
pointer is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from dsort.errors import SpecError, SpecProblem
from dsort.service.schedules.definition import ScheduleDefinition
from dsort.service.schedules.render import has_placeholder, shared_part
from dsort.spec.dialects import translate

__all__ = [
    "POINTER_NAME",
    "names_prefix",
    "pointer_name",
    "with_shared_buckets",
]

POINTER_NAME: Final = "latest.json"
_COUNTER = re.compile(r"[{@%]")  # where a template begins to count


def pointer_name(definition: ScheduleDefinition) -> str | None:
    """The object that says which result of the schedule is the newest; None if there is none.

    It is in what all runs share of the output bucket; there under ``latest``, if that is a text, or
    else under what all names of outputs share, in whole ``/``-separated parts.
    """
    if definition.latest is False:
        return None
    if isinstance(definition.latest, str):
        return f"{definition.latest}/{POINTER_NAME}"
    fields = translate(definition.spec).fields
    written = fields.get("output_bck") or fields.get("input_bck")
    prefix = ""
    if _shared_bucket(written, "output_bck") == written:  # else all names are under a placeholder
        prefix = names_prefix(fields.get("output_format"))
    return f"{prefix}/{POINTER_NAME}" if prefix else POINTER_NAME


def with_shared_buckets(spec: Mapping[str, Any]) -> dict[str, Any]:
    """``spec``, not rendered, with as much of its buckets as all runs share. ``SpecError`` for
    buckets whose very name has a placeholder."""
    shared: dict[str, Any] = dict(spec)
    problems: list[SpecProblem] = []
    for field in ("input_bck", "bck", "output_bck"):
        if field in spec:
            try:
                shared[field] = _shared_bucket(spec[field], field)
            except SpecError as error:
                problems.extend(error.problems)
    if problems:
        raise SpecError(problems)
    return shared


def _shared_bucket(value: Any, field: str) -> Any:
    if isinstance(value, str):
        return _shared_name(value, field)
    if not isinstance(value, Mapping):
        return value
    if has_placeholder(value.get("name")):
        rest = {key: each for key, each in value.items() if key != "prefix"}
        return {**rest, "name": _shared_name(value["name"], f"{field}.name")}
    if has_placeholder(value.get("prefix")):
        prefix = shared_part(value["prefix"])
        rest = {key: each for key, each in value.items() if key != "prefix"}
        return {**rest, "prefix": prefix} if prefix else rest
    return value


def _shared_name(text: str, field: str) -> str:
    scheme, separator, place = text.rpartition("://")
    shared = shared_part(place)
    if not shared.strip("/"):
        raise SpecError(
            [
                SpecProblem(
                    field,
                    "has a placeholder in the name of the bucket itself",
                    "only what is under a bucket can differ from run to run: "
                    '"s3://bucket/{{date}}", "shuffled/{{date}}"',
                )
            ]
        )
    return f"{scheme}{separator}{shared}"


def names_prefix(template: Any) -> str:
    """What all names of a template share, in whole ``/``-separated parts."""
    if not isinstance(template, str):
        return ""  # an external key map: its templates share nothing that is known here
    match = _COUNTER.search(template)
    return template[: match.start()].rpartition("/")[0] if match else ""
