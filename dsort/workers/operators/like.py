"""Leaves out records whose keys another result lacks, where the job is ordered as that is."""

from __future__ import annotations

import numpy as np

from dsort.data.index import GROUP
from dsort.data.table import Table
from dsort.errors import KeyMapError
from dsort.naming.names import readable
from dsort.order.like import Like
from dsort.workers.batch import Batch, Operator


class PlaceLike(Operator):
    """Sets ``GROUP``: 0, or -1 where the other result lacks the key. ``KeyMapError`` for that,
    unless the spec lets such records go."""

    in_rows = True

    def apply(self, batch: Batch) -> None:
        """Add the outputs of records to the facts."""
        algorithm = self.pipeline.algorithm
        assert isinstance(algorithm, Like)
        keys = batch.records.keys
        group = np.minimum(algorithm.known.lookup(keys), 0).astype(np.int32)
        lost = np.flatnonzero(group < 0)
        if len(lost) and self.pipeline.reading.policies.ekm_missing_key == "abort":
            raise KeyMapError(
                f"{algorithm.known.result} has no record {readable(keys[int(lost[0])])}, which "
                f"shard {batch.shard.name} has",
                hint="ekm_missing_key: warn leaves such records out, and counts them",
            )
        if len(lost):
            shown = [f"{batch.shard.name}: {readable(keys[row])}" for row in lost.tolist()]
            batch.log.add("ekm_missing_key", len(lost), shown)
        batch.found = batch.found.beside(Table(len(group), {GROUP.text: group}))
