"""Replaces the dashboard agent that Ray begins beside each raylet. Without ``ray[default]`` the
agent serves nothing, but it is an interpreter that loads all of Ray. This program reports that it
has no ports, and ends with the raylet.

It runs in a process of its own, and loads nothing of dsort.
"""

import sys
from pathlib import Path

PORTS = ("dashboard_agent_listen_port", "metrics_agent_port", "metrics_export_port")
NONE = -1


def main(options: list[str]) -> None:
    given = dict(each.removeprefix("--").partition("=")[::2] for each in options)
    for name in PORTS:
        path = Path(given["session-dir"]) / f"{name}_{given['node-id']}"
        part = path.with_name(f"{path.name}.part")
        part.write_text(str(NONE), encoding="ascii")
        part.rename(path)
    sys.stdin.read()  # returns at the end of the raylet, which has the other end


if __name__ == "__main__":
    main(sys.argv[1:])
