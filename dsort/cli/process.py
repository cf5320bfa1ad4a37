"""The process of a command, which may belong to a program that calls ``main``; and a child process
for a command that uses Ray. When the Ray node of this machine is lost, Ray ends the process that
uses Ray, with exit code 1 and messages of Ray's own, and the process cannot prevent that. So a
parent waits for the child, and reports the loss.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Final

from dsort.errors import WorkerLostError

PLUGINS: Final = "PYDANTIC_DISABLE_PLUGINS"
PLUGIN_LOADER: Final = "pydantic.plugin._loader"
"""The module that looks for pydantic's plugins. It loads ``importlib.metadata``, and with that
``email``. If a version of pydantic has no module of this name, the variable alone has the
effect."""

_is_own = False


def own_process() -> None:
    """Record that this process belongs to the command alone."""
    global _is_own
    _is_own = True


def is_own_process() -> bool:
    """Whether this process belongs to the command alone."""
    return _is_own


@contextlib.contextmanager
def without_plugins() -> Iterator[None]:
    """In this context, pydantic builds models without a search for its plugins in all installed
    packages, which would take a sixth of the time of a small job. The variable for this is removed
    afterwards, so child processes do not get it, and models of a user's code still have their
    plugins."""
    if not _is_own or PLUGINS in os.environ:
        yield
        return
    no_loader = _NoLoader(PLUGIN_LOADER)
    os.environ[PLUGINS] = "__all__"
    sys.modules.setdefault(PLUGIN_LOADER, no_loader)
    try:
        yield
    finally:
        os.environ.pop(PLUGINS, None)
        if sys.modules.get(PLUGIN_LOADER) is no_loader:
            del sys.modules[PLUGIN_LOADER]


class _NoLoader(ModuleType):
    """Replaces pydantic's loader of plugins."""

    def get_plugins(self) -> tuple[()]:
        """No plugins."""
        return ()


VERBS: Final = {
    *("append", "convert", "ingest", "plan", "remove", "reshard", "resume"),
    *("shuffle", "sort", "start", "transform"),
}
PR_SET_PDEATHSIG = 1
STOPS: Final = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
AWAITED: Final = STOPS | {signal.SIGTSTP, signal.SIGCHLD}
IN_ORDER = b"."


def is_for_ray(argv: Sequence[str]) -> bool:
    """Whether a command line may use Ray in its own process. False if it reads its spec from a
    terminal, which only one process at a time can read."""
    asks = any(each == "--ray" or each.startswith("--ray-address") for each in argv)
    typed = "-" in argv and os.isatty(0)
    return bool(argv) and argv[0] in VERBS and asks and not typed


def run_overseen(work: Callable[[], int]) -> int:
    """Run ``work`` in a child, and return its exit code. Requests to stop are passed on to the
    child, and the child ends when this process ends. ``WorkerLostError`` if Ray ended it."""
    import ctypes

    parent = os.getpid()
    read_end, report_end = os.pipe()
    # Signals stay pending from now on, so that none is lost and the child gets each once.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)
    child = os.fork()
    if child == 0:
        os.close(read_end)
        os.setpgid(0, 0)
        # So that the child may write to the terminal, though it is in a group of its own.
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        try:
            return work()
        finally:
            os.write(report_end, IN_ORDER)
    os.close(report_end)
    status = _wait(child)
    in_order = os.read(read_end, 1) == IN_ORDER
    os.close(read_end)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    code = os.waitstatus_to_exitcode(status)
    if in_order and code >= 0:
        return code
    if code in (1, -signal.SIGABRT):
        raise WorkerLostError(
            "Ray ended the job's process, as it does when its node on this machine is lost",
            hint="look at Ray's own logs and at the free memory; `dsort resume` resumes the job",
        )
    if code < 0:  # end by the signal that ended the child
        sys.stdout.flush()
        signal.signal(-code, signal.SIG_DFL) if -code not in UNCHANGEABLE else None
        os.kill(parent, -code)
    return code


UNCHANGEABLE: Final = frozenset({signal.SIGKILL, signal.SIGSTOP})


def _wait(child: int) -> int:
    """Pass signals on to ``child`` until it ends, and return its status."""
    while True:
        number = signal.sigwait(AWAITED)
        if number in STOPS:
            os.kill(child, number)
        elif number == signal.SIGTSTP:
            os.kill(child, signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGSTOP)
            os.kill(child, signal.SIGCONT)
        else:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                return status
