"""The ``dsort`` command, and ``python -m dsort``.

Importing the verbs takes a quarter of a second, in which the user may press Ctrl-C already.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from contextlib import suppress

from dsort.late_methods import load_quickly

__all__ = ["main"]


def main() -> int:
    """Run the command line of this process, and end it. Returns the exit code where others have
    something to do in this process: a thread of theirs runs, or a profiler."""
    try:
        load_quickly()
        from dsort.cli.main import main as run
    except KeyboardInterrupt:
        os.write(2, b"error: stopped by SIGINT\n")
        return 128 + signal.SIGINT
    code = run()
    if _may_end():
        _end(code)
    return code


def _may_end() -> bool:
    others = [each for each in threading.enumerate() if each is not threading.main_thread()]
    are_ours = all(each.daemon or each.name.startswith("dsort-") for each in others)
    return are_ours and not (sys.getprofile() or sys.gettrace())


def _end(code: int) -> None:
    """End the process, with all that is to be done at its end, but without freeing each object of
    700 modules: that takes a quarter of a small job's time. Returns if output cannot be written,
    which the interpreter is to tell."""
    with suppress(KeyboardInterrupt):  # the command is over: whoever cannot wait need not
        threading._shutdown()  # type: ignore[attr-defined]  # for pools, as the interpreter does
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):
        return
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
