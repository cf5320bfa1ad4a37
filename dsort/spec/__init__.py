"""Job specs: reads, checks and completes what a user writes.

A spec is given as a file, a text or a mapping, in JSON, YAML or one of AIStore's older dialects.
The result is a frozen :class:`JobSpec`, complete and checked, with warnings for its writer; or a
``SpecError`` with all of its problems at once, each with its field and a hint. Nothing here opens a
bucket or decides anything about data.
"""

from __future__ import annotations

from dsort.spec.algorithms import Algorithm
from dsort.spec.buckets import BucketRef, parse_bucket
from dsort.spec.inputs import InputFormat
from dsort.spec.load import SPEC_BYTES_MAX, LoadedSpec, load_spec, parse_spec
from dsort.spec.model import JobSpec
from dsort.spec.parts import JobConfig, Reaction
from dsort.spec.schema import schema

__all__ = [
    "SPEC_BYTES_MAX",
    "Algorithm",
    "BucketRef",
    "InputFormat",
    "JobConfig",
    "JobSpec",
    "LoadedSpec",
    "Reaction",
    "load_spec",
    "parse_bucket",
    "parse_spec",
    "schema",
]
