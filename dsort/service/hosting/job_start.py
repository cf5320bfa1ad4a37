"""What a service begins jobs by: ``python -m dsort.service.hosting.job_start JOB ATTEMPT``."""

from __future__ import annotations

import sys

from dsort.late_methods import load_quickly

__all__ = ["main"]


def main() -> int:
    """Load what does jobs, then do the attempt that the command line names; the exit code."""
    load_quickly()
    from dsort.service.hosting.job_main import main as run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
