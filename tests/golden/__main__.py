"""Pins what small jobs give: ``python -m tests.golden`` those that are new, ``--all``, or
``PART OF A NAME``."""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import astuple
from pathlib import Path

from tests.golden.features import allowed_features, feature_job
from tests.golden.jobs import JOBS
from tests.golden.runs import WAYS, run
from tests.golden.test_golden_jobs import DIGESTS

if __name__ == "__main__":
    jobs, part = (
        JOBS | {name: feature_job(name) for name in allowed_features()},
        " ".join(sys.argv[1:]),
    )
    found = json.loads(DIGESTS.read_text()) if DIGESTS.exists() else {}
    if part == "--all":
        found = {}
    elif part:
        found = {name: known for name, known in found.items() if part not in name}
    try:
        for name in [name for name in jobs if name not in found]:
            with tempfile.TemporaryDirectory() as directory:
                made = run(jobs[name], WAYS[0], Path(directory))
            found[name] = made if isinstance(made, str) else list(astuple(made))
            print(name, found[name])
    finally:
        lines = [json.dumps({name: found[name]})[1:-1] for name in jobs if name in found]
        DIGESTS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
