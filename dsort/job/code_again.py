"""Runs steps with code outside of workers: on some records, to learn from them or to compare."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from dsort.data.members import MemberTable
from dsort.data.records import FormedRecords
from dsort.data.tally import Tally
from dsort.job.resources import cores
from dsort.job.user_code import room_here
from dsort.moves.bare import BARE
from dsort.moves.input_shard import ShardBytes
from dsort.pipeline.pipeline import StepFailures
from dsort.scratch.directory import Scratch
from dsort.transforms.base import Step
from dsort.workers.conversion import bared_records
from dsort.workers.tasks import CodeShare
from dsort.workers.transformer import Transformed, Transformer


class CodeAgain:
    """The steps of a job, some of which run code, in processes of this machine, until ``close``."""

    def __init__(self, failures: StepFailures, steps: Sequence[Step]) -> None:
        self._steps = steps
        room = room_here(steps, cores())
        self._directory = tempfile.TemporaryDirectory(prefix="dsort-code-")
        scratch = Scratch(Path(self._directory.name) / "scratch", make=True)
        rules = replace(failures, rejects="")  # the job itself keeps such records
        self._transformer = Transformer(rules, CodeShare(gpus=room.gpus), scratch)

    def read_rows(self, decoders: Mapping[str, str]) -> None:
        """From now on records are rows, whose cells are values (``columnar.cell_types``)."""
        self._transformer.cells = dict(decoders)

    def close(self) -> None:
        """End the processes."""
        self._transformer.close()
        self._directory.cleanup()

    def run(
        self,
        shard: ShardBytes,
        members: MemberTable,
        records: FormedRecords,
        *,
        input_name: str = "",
        firsts: Sequence[int] = (),
    ) -> Transformed:
        """What the steps leave of the records of a bare table, as another table. ``TransformError``
        if the job would end."""
        left = self._transformer.run(
            self._steps,
            shard,
            members,
            records,
            Tally(),
            None,
            input_name=input_name,
            firsts=firsts,
        )
        if shard.container is BARE:
            return left
        bare, found = bared_records(shard, left.named, left.records)
        return replace(left, members=bare, named=bare, records=found)
