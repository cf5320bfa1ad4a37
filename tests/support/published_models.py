"""What others publish of the files that they take, to judge ours by without a network: Kubernetes'
API as lightkube has it, the schema of the Compose Specification, Grafana's model of a dashboard."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import jsonschema

_PODS = "core/v1"


def is_of_kubernetes(document: dict[str, Any]) -> bool:
    """Whether Kubernetes itself knows the object: operators bring kinds of their own."""
    group = document["apiVersion"].partition("/")[0]
    return "." not in group or group.endswith(".k8s.io")


def check_kubernetes(document: dict[str, Any], kind: str = "") -> None:
    """``ValueError`` names what is missing, of another type, or no field of an object of its
    ``kind``: the object's own, or of a part of one (``PodTemplateSpec``)."""
    import msgspec  # few tests want it

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
    """``ValueError`` names what is no field of a dashboard, or another value in Grafana's words."""
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models.dashboard import Dashboard

    made = Dashboard.from_json(document)
    _refuse_lost(document, json.loads(json.dumps(made, cls=JSONEncoder)))


def _refuse_lost(document: object, back: object) -> None:
    lost = [*_lost(document, back, "")]
    if lost:
        raise ValueError(f"no such field, or another value: {', '.join(lost)}")


def _lost(document: object, back: object, path: str) -> Iterator[str]:
    """The paths of what is in ``document`` and did not come back."""
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
