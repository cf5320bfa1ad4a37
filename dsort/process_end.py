"""Ends a process that has done its work."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from contextlib import suppress

__all__ = ["end_process"]


def end_process(code: int) -> None:
    """End the process with ``code``: do what the interpreter does at the end, but do not free each
    object of 700 modules, which would take a quarter of a small job's time.

    Return if foreign code still has work in this process (a thread, a profiler), or if output
    cannot be written, so that the interpreter reports it.
    """
    others = [each for each in threading.enumerate() if each is not threading.main_thread()]
    are_ours = all(each.daemon or each.name.startswith("dsort-") for each in others)
    if not are_ours or sys.getprofile() or sys.gettrace():
        return
    with suppress(KeyboardInterrupt):  # the work is done: a second Ctrl-C need not wait
        threading._shutdown()  # type: ignore[attr-defined]  # for pools, as the interpreter does
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):
        return
    os._exit(code)
