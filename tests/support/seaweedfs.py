"""A real S3 server for tests: the same program that benchmarks run."""

from __future__ import annotations

from benchmarks.seaweedfs import S3Server, seaweedfs

__all__ = ["S3Server", "seaweedfs"]
