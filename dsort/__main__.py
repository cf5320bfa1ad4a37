"""The ``dsort`` command, and ``python -m dsort``.

Importing the verbs takes a quarter of a second, in which the user may press Ctrl-C already.
"""

from __future__ import annotations

import os
import signal
import sys

__all__ = ["main"]


def main() -> int:
    """Run the command line of this process; the exit code."""
    try:
        from dsort.cli.main import main as run
    except KeyboardInterrupt:
        os.write(2, b"error: stopped by SIGINT\n")
        return 128 + signal.SIGINT
    return run()


if __name__ == "__main__":
    sys.exit(main())
