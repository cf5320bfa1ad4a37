"""What is in ``deploy/``, read and taken apart."""

from __future__ import annotations

import re
from typing import Any

import yaml

from tests.support.commands import ROOT

__all__ = ["DEPLOY", "dsort_commands", "read_text", "read_unit", "read_yaml"]

DEPLOY = ROOT / "deploy"


def read_text(name: str) -> str:
    """A file of ``deploy/``."""
    return (DEPLOY / name).read_text(encoding="utf-8")


def read_yaml(name: str) -> Any:
    return yaml.safe_load(read_text(name))


def read_unit() -> dict[str, list[str]]:
    """The settings of the systemd unit; one that is there twice has two values."""
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r"(?m)^([A-Z]\w+)=(.*)$", read_text("dsort.service")):
        found.setdefault(name, []).append(value)
    return found


def dsort_commands(text: str) -> list[str]:
    """The calls of dsort in comments and commands that go before it (``sudo -u dsort``)."""
    return re.findall(
        r"(?<![\w/.-])(?:/opt/dsort/bin/)?(dsort (?:serve|token|start) [^\n#]*)", text
    )
