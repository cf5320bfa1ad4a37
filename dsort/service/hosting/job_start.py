"""The module that a service starts for a job: ``python -m dsort.service.hosting.job_start JOB
ATTEMPT``."""

from __future__ import annotations

import gc
import sys

from dsort.process_end import end_process


def main() -> int:
    """Import the engine, do the attempt that the command line names, and end the process. Returns
    the exit code if the interpreter has to end the process."""
    gc.set_threshold(200_000)  # as in dsort/__main__.py
    from dsort.service.hosting.job_main import main as run

    code = run(sys.argv[1:])
    end_process(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
