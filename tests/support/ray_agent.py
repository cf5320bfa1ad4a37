"""What stands beside a raylet of the tests for Ray's agent of the dashboard, of which there is
nothing where ``ray[default]`` is not installed: an interpreter that loads all of Ray. It says as
much, and ends with the raylet.

It is run by itself: nothing of dsort is loaded here.
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
    sys.stdin.read()  # nothing: the raylet has the other end


if __name__ == "__main__":
    main(sys.argv[1:])
