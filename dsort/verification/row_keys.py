"""Whether rows of tables that stay rows say what their keys are."""

from __future__ import annotations

from collections.abc import Sequence

from dsort.errors import CorruptShardError, ObjectNotFoundError
from dsort.job.tables import table_schema
from dsort.pipeline.compile import steps_of
from dsort.spec.model import JobSpec
from dsort.storage.bucket import Bucket
from dsort.transforms.join_key import JoinKey
from dsort.transforms.rekey import Rekey


def rows_have_keys(spec: JobSpec, bucket: Bucket, inputs: Sequence[str]) -> bool:
    """Whether the rows of the result have a column of keys, as the spec and the first input shard
    that can be read say: ``key_field``, or ``__key__``. Without one, they are but numbered."""
    from dsort.containers.columnar.cells import KEY_COLUMN  # few results are of tables

    gives_keys = any(isinstance(step, (Rekey, JoinKey)) for step in steps_of(spec))
    if spec.key_field or gives_keys:
        return True
    for name in inputs:
        try:
            return KEY_COLUMN in table_schema(bucket, name).names
        except (CorruptShardError, ObjectNotFoundError):
            continue
    return False
