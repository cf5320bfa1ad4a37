"""Verifies results of tests with ``dsort verify``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dsort import api
from dsort.options import RunOptions
from tests.support.internals import VerifyReport, manifest_name

__all__ = ["assert_verified", "verify_result"]


def verify_result(root: Path, job_id: str, bucket: str = "out", **options: Any) -> VerifyReport:
    """The report of a verification of a job's result, in a bucket below ``root``."""
    manifest = (root / bucket / manifest_name(job_id)).read_bytes()
    return api.verify(manifest, options=RunOptions(root=root, **options))


def assert_verified(root: Path, job_id: str, bucket: str = "out") -> None:
    assert verify_result(root, job_id, bucket).problems == ()
