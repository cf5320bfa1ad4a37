"""Steps that run code, run again: what they make of the records of an input shard.

Only for who asks for it: a manifest, which somebody else may have written, says what is run.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dsort.data.members import MemberTable
from dsort.data.records import FormedRecords
from dsort.data.tally import Tally
from dsort.job.resources import cores
from dsort.job.user_code import described_steps
from dsort.options import RunOptions
from dsort.scratch.directory import Scratch
from dsort.spec.model import JobSpec
from dsort.transforms.base import Step
from dsort.transforms.payload import PayloadStep
from dsort.verification.findings import Findings
from dsort.workers.conversion import BARE, bared_records
from dsort.workers.devices import CodeRoom
from dsort.workers.source import ShardBytes
from dsort.workers.tasks import TransformRules
from dsort.workers.transformer import Transformed, Transformer

__all__ = ["CodeAgain"]


class CodeAgain:
    """The steps of a job, of which some run code. ``TransformError`` if that cannot be loaded."""

    def __init__(self, spec: JobSpec, steps: Sequence[Step], options: RunOptions) -> None:
        assert spec.transform is not None
        room = CodeRoom.here(steps, cores())
        self._steps = described_steps(steps, replace(options, runs_code=True))
        self._directory = tempfile.TemporaryDirectory(prefix="dsort-verify-")
        scratch = Scratch(Path(self._directory.name) / "scratch", make=True)
        rules = TransformRules(spec.transform.on_error, gpus=room.gpus)
        self._transformer = Transformer(rules, scratch)

    def close(self) -> None:
        """End its processes."""
        self._transformer.close()
        self._directory.cleanup()

    def tell_changes(self, known: Sequence[Mapping[str, Any]], findings: Findings) -> None:
        """Warn of code that is not what the manifest ``known`` says it was."""
        before = {each.get("step"): each for each in known}
        for number, step in enumerate(self._steps):
            if not isinstance(step, PayloadStep) or number not in before:
                continue
            then, now = before[number], json.loads(step.known)
            changed = [
                words
                for name, words in (
                    ("source_sha256", "source"),
                    ("packages", "versions of packages"),
                )
                if then.get(name) != now.get(name)
            ]
            if changed:
                findings.warn(
                    "changed_code",
                    f"transform.steps[{number}].{step.kind} has another {' and '.join(changed)} "
                    "than at the time of the job: differences may come of that",
                )

    def run(
        self,
        shard: ShardBytes,
        members: MemberTable,
        records: FormedRecords,
        *,
        input_name: str,
        firsts: Sequence[int],
    ) -> Transformed:
        """What the steps leave of the records of a bare table, as another one. ``TransformError``
        where the job would have ended."""
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
