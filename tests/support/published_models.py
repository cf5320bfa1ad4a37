"""Published models of other programs' files, to check the files of ``cluster/`` without a network:
Kubernetes' API (lightkube), the schema of the Compose Specification, Grafana's model of a
dashboard."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import jsonschema

_PODS = "core/v1"


def is_of_kubernetes(document: dict[str, Any]) -> bool:
    """Whether the object is of a kind of Kubernetes itself: operators add kinds of their own."""
    group = document["apiVersion"].partition("/")[0]
    return "." not in group or group.endswith(".k8s.io")


def check_kubernetes(document: dict[str, Any], kind: str = "") -> None:
    """``ValueError`` if a field is missing, has another type, or is no field of ``kind``: the kind
    of the object, or that of a part of an object (``PodTemplateSpec``)."""
    import msgspec  # few tests need it

    version = _PODS if kind else document["apiVersion"]
    group, _, number = (version if "/" in version else f"core/{version}").partition("/")
    group = "rbac" if group.startswith("rbac.") else group.partition(".")[0]
    models = importlib.import_module(f"lightkube.models.{group}_{number}")
    try:
        found = msgspec.convert(document, getattr(models, kind or document["kind"]))
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
    _refuse_lost(document, msgspec.to_builtins(found))


def check_compose(document: object) -> None:
    """``jsonschema.ValidationError`` if it is no compose file."""
    place = files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    schema = json.loads(place.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(document)


def check_dashboard(document: dict[str, Any]) -> None:
    """``ValueError`` names each key that is no field of a dashboard, and each value that Grafana's
    model changes."""
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models.dashboard import Dashboard

    made = Dashboard.from_json(document)
    _refuse_lost(document, json.loads(json.dumps(made, cls=JSONEncoder)))


def _refuse_lost(document: object, back: object) -> None:
    lost = [*_lost(document, back, "")]
    if lost:
        raise ValueError(f"no such field, or another value: {', '.join(lost)}")


def _lost(document: object, back: object, path: str) -> Iterator[str]:
    """The paths of values in ``document`` that are missing from ``back``, or differ there."""
    if isinstance(document, dict) and isinstance(back, dict):
        for name, value in document.items():
            if name not in back:
                yield f"{path}.{name}"
            else:
                yield from _lost(value, back[name], f"{path}.{name}")
    elif isinstance(document, list) and isinstance(back, list) and len(document) == len(back):
        for at, (one, other) in enumerate(zip(document, back, strict=True)):
            yield from _lost(one, other, f"{path}[{at}]")
    elif document != back:
        yield path
