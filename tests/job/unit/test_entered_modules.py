"""A local job that maps its inputs enters few modules: each is a stop on the way of a reader."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import dsort
from tests.support.datasets import small_dataset, write_shards
from tests.support.engine import spec_of
from tests.support.inline_runtime import run_inline

ENTERED_MAX = 134
"""Modules of dsort that this job enters, spec and stores included. Only ever lowered."""

PACKAGE = Path(dsort.__file__).parent


def test_a_local_job_that_maps_its_inputs_enters_few_modules(tmp_path: Path) -> None:
    write_shards(tmp_path / "in", small_dataset("entered"))
    spec = spec_of(algorithm={"kind": "shuffle", "seed": 5}, output_shard_records=7)
    entered: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        # The bodies of modules and classes are not optimised: importing enters nothing.
        if event == "call" and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            entered.add(frame.f_code.co_filename)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        run_inline(spec, tmp_path)
    finally:
        sys.setprofile(before)
    own = {Path(name).relative_to(PACKAGE) for name in entered if PACKAGE in Path(name).parents}
    assert Path("workers/creator.py") in own
    assert len(own) <= ENTERED_MAX, sorted(map(str, own))
