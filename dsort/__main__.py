"""The ``dsort`` command, and ``python -m dsort``.

Importing the verbs takes a quarter of a second, in which the user may press Ctrl-C already.
"""

from __future__ import annotations

import gc
import os
import signal
import sys

from dsort.process_end import end_process

__all__ = ["main"]


def main() -> int:
    """Run the command line of this process, and end it. Returns the exit code only if foreign code
    still has work in this process: a thread, or a profiler."""
    try:
        # Loaded modules are no garbage. Searching them after every 700 new objects would take 5 %
        # of the time of a small job.
        gc.set_threshold(200_000)
        from dsort.cli.main import main as run
    except KeyboardInterrupt:
        os.write(2, b"error: stopped by SIGINT\n")
        os.write(2, b"hint: no job was running here: there is nothing to resume\n")
        return 128 + signal.SIGINT
    code = run()
    end_process(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
