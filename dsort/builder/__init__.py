"""A job spec, built in Python one call after the other: ``dsort.read(...)....write(...)``.

What is built is the spec itself: each call gives one or several of its fields, and nothing else is
kept. In go Python values; out comes a ``JobSpec``, or a ``SpecError`` with all problems at once, in
the words of the calls.
"""

from __future__ import annotations

from dsort.builder.builder import SpecBuilder, read

__all__ = ["SpecBuilder", "read"]
