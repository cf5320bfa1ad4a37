"""``dsort`` with a fault in its workers: ``python -m tests.support.faulty_cli FAULT ARGS...``, the
fault as JSON."""

from __future__ import annotations

import json
import sys

import dsort.runtime.local
from dsort.cli.main import main
from tests.support.faults import Fault, bootstrap

if __name__ == "__main__":
    fault = Fault(**json.loads(sys.argv.pop(1)))
    dsort.runtime.local.BOOTSTRAP = bootstrap(fault)
    sys.exit(main(sys.argv[1:]))
