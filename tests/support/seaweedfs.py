"""A real S3 server for tests: the one that benchmarks run, too."""

from __future__ import annotations

from benchmarks.seaweedfs import S3Server, seaweedfs

__all__ = ["S3Server", "seaweedfs"]
