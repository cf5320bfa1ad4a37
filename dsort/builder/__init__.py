"""A job spec, built in Python one call after the other: ``dsort.read(...)....write(...)``.

``builder`` has the chain of calls, and is the first to read; ``fields``, ``outputs`` and ``steps``
set fields of the spec from Python values. The result is a ``JobSpec``, or a ``SpecError`` with all
problems at once, which names the calls.
"""

from __future__ import annotations

from dsort.builder.builder import SpecBuilder, read

__all__ = ["SpecBuilder", "read"]
