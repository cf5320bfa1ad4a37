"""Specs that another process receives."""

from __future__ import annotations

import subprocess
import sys

from tests.support.commands import ROOT


def test_a_spec_that_no_loader_read_is_sent_as_well() -> None:
    code = (
        "import pickle, dsort\n"
        "spec = dsort.JobSpec.model_validate({'input_bck': 'in', 'keep_shards': True})\n"
        "assert pickle.loads(pickle.dumps(spec)) == spec\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
