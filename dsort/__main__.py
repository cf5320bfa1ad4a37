"""The ``dsort`` command, and ``python -m dsort``.

Importing the verbs takes a quarter of a second, in which the user may press Ctrl-C already.
"""

from __future__ import annotations

import gc
import os
import signal
import sys

from dsort.late_methods import compile_methods_late

__all__ = ["main"]

COLLECTED_AFTER = 50_000
"""Objects. What is loaded is no garbage: to look for some after each 700 is 5 % of a small job."""


def main() -> int:
    """Run the command line of this process; the exit code."""
    try:
        gc.set_threshold(COLLECTED_AFTER, *gc.get_threshold()[1:])
        compile_methods_late()
        from dsort.cli.main import main as run
    except KeyboardInterrupt:
        os.write(2, b"error: stopped by SIGINT\n")
        return 128 + signal.SIGINT
    return run()


if __name__ == "__main__":
    sys.exit(main())
