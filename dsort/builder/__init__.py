"""A job spec, built in Python one call after the other: ``dsort.read(...)....write(...)``.

The builder keeps nothing but fields of the spec: each call sets one or several of them from Python
values. The result is a ``JobSpec``, or a ``SpecError`` with all problems at once, which names the
calls.
"""

from __future__ import annotations

from dsort.builder.builder import SpecBuilder, read

__all__ = ["SpecBuilder", "read"]
