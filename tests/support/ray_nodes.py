"""Nodes of a Ray on this machine that start in less processor time: see ``ray_agent``."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support import ray_agent

AGENT = "--dashboard_agent_command="


@contextlib.contextmanager
def bare_nodes() -> Iterator[None]:
    """In this block, nodes that this process begins have no agent of the dashboard, no log monitor
    and no autoscaler: each of these would load all of Ray."""
    from ray._private import node, services

    begin = services.start_ray_process
    monitors = {name: getattr(node.Node, name) for name in ("start_monitor", "start_log_monitor")}

    def start_ray_process(command: list[str], process_type: str, *args: Any, **named: Any) -> Any:
        if process_type == "raylet":
            command = [_without_agent(each) for each in command]
        return begin(command, process_type, *args, **named)

    services.start_ray_process = start_ray_process
    for name in monitors:
        setattr(node.Node, name, lambda *given, **named: None)
    try:
        yield
    finally:
        services.start_ray_process = begin
        for name, method in monitors.items():
            setattr(node.Node, name, method)


def _without_agent(argument: str) -> str:
    if not argument.startswith(AGENT):
        return argument
    command = argument.removeprefix(AGENT).split()
    if "--minimal" not in command:
        return argument  # there is a dashboard: its agent has work to do
    options = " ".join(part for part in command if part.startswith("--"))
    return f"{AGENT}{sys.executable} -I -S {Path(ray_agent.__file__)} {options}"
