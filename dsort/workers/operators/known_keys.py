"""Reads the keys of a result's records before a job adds records to the result."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dsort.data.columns import BytesColumn
from dsort.data.index import KEY_HASH, KEYS
from dsort.data.records import FormedRecords, form_records
from dsort.data.table import Table
from dsort.moves.input_shard import ShardBytes
from dsort.moves.payload_files import PayloadBuffer
from dsort.scratch.nodes import ScratchNodes
from dsort.scratch.requests import known_keys_file
from dsort.storage.bucket import Bucket
from dsort.workers.tasks import KnownKeysDone, KnownKeysTask, WorkerSetup


def read_known_keys(
    task: KnownKeysTask,
    outputs: Bucket,
    buffer: PayloadBuffer,
    setup: WorkerSetup,
    nodes: ScratchNodes,
) -> KnownKeysDone:
    """Read the headers of the shards, and store their keys in scratch, sorted by hash."""
    found = list(_formed(task, outputs, buffer, setup))
    hashes = np.concatenate([np.zeros(0, np.uint64), *(each.key_hash for each in found)])
    keys = BytesColumn.concat([each.keys for each in found])
    order = np.argsort(hashes, kind="stable")
    table = Table(len(hashes), {KEY_HASH.text: hashes, KEYS.text: keys}).take(order)
    nodes.store.write_table(known_keys_file(task.number), table)
    return KnownKeysDone(task.number, nodes.node, len(hashes))


def _formed(
    task: KnownKeysTask, outputs: Bucket, buffer: PayloadBuffer, setup: WorkerSetup
) -> Iterator[FormedRecords]:
    for name, container in task.shards:
        with outputs.open(name) as source:
            shard = ShardBytes(
                name,
                source,
                buffer,
                mapped=setup.movement.way.keeps_mappings,
                container=task.containers[container],
                decoding=setup.pipeline.reading.decoding,
            )
            try:
                yield form_records(shard.members(), "keep")
            finally:
                shard.close()
