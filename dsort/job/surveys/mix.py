"""Decides how many times the records of each input are output, by weights or by exact numbers.

For exact numbers, a pass over the inputs (the stage ``lots``) counts records. Each record draws a
lot, a random number; the pass finds the lot of the last record that is output once more.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import ceil

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from dsort.errors import MixError
from dsort.job.extraction import Extraction
from dsort.job.job import Fact, Facts, Job
from dsort.job.surveys.survey import Selection, Survey
from dsort.pipeline.pipeline import Mix
from dsort.scratch.requests import KeyDraws
from dsort.sizes import format_count
from dsort.storage.routed import parted
from dsort.transforms.outputs import ORDINAL_BITS, CopyRule, shares_of_stop, shares_of_total
from dsort.workers.tasks import Stage

_LOTS = 1 << 64
LOT_BITS = 64
ORDINALS = 1 << ORDINAL_BITS


class Copies(Struct, frozen=True):
    """How many times the records of one input are output: see ``CopyRule``. A record with the lot
    ``below`` is output once more if it is before the position (``tied_shard``, ``tied_before``). If
    ``tied_shard`` is -1, no record with this lot is output once more."""

    least: int
    below: int
    tied_shard: int
    tied_before: int

    def rule(self, shard: int, input_name: str, seed: str) -> CopyRule:
        """The rule for the shard with the ordinal ``shard``."""
        before = self.tied_before if shard == self.tied_shard else 0
        if shard < self.tied_shard:
            before = ORDINALS  # all records of the shard
        return CopyRule(input_name, seed, self.least, self.below, before)


def wanted_records(
    mix: Mix, records: Mapping[str, int], *, may_copy: bool = True
) -> dict[str, int]:
    """How many records are output of each input that has an exact number, by its name. ``records``:
    how many each input has. ``MixError`` if that is impossible."""
    if mix.total is not None:
        wanted = dict(zip(mix.names, shares_of_total(mix.total, mix.weights), strict=True))
    elif mix.stop is not None:
        counts = [records[name] for name in mix.names]
        wanted = dict(zip(mix.names, shares_of_stop(mix.stop, counts, mix.weights), strict=True))
    else:
        exact = zip(mix.names, mix.records, strict=True)
        wanted = {name: count for name, count in exact if count is not None}
    for name, count in wanted.items():
        there = records[name]
        asked = format_count(count, "record is", "records are") + f" wanted of the input {name}"
        if count and not there:
            text = f"{asked}, which has none"
            raise MixError(text, hint="leave this input out, or check its input_format")
        if mix.total and not mix.replacement and count > there:
            raise MixError(
                f"{asked}, which has {there:,}",
                hint="mix.replacement: true takes them several times; or lower mix.records, or the "
                "weight of the input",
            )
        if count > there and not may_copy:
            raise MixError(
                f"{asked}, of which deduplicate leaves {there:,}: copies would count as equal",
                hint="lower the number for this input; or drop equal records in an earlier job",
            )
    return wanted


class InputCopies(Survey[dict[str, Copies]]):
    """The rule for each input shard, if inputs have weights or numbers. Later attempts use the same
    rule, because the spill of an earlier attempt has the records that this rule chose."""

    def __init__(self, job: Job, mix: Mix) -> None:
        self.mix = mix
        super().__init__(job)

    def passes_needed(self) -> int:
        return int(self.mix.is_counted)

    def fact(self) -> Fact[dict[str, Copies]]:
        return Fact("mix.json", dict[str, Copies], self._of)

    def search(self, known: Facts) -> dict[str, Copies]:
        return self.read(Stage("lots", left_out=known.left_out), known, self._chosen)

    def facts(self, known: Facts, value: dict[str, Copies] | None) -> Facts:
        mix = self.mix
        copies = value or dict(zip(mix.names, map(_of_weight, mix.weights), strict=True))
        inputs = [parted(shard.name)[0] for shard in self.job.inputs]
        rules = [copies[name].rule(at, name, mix.seed) for at, name in enumerate(inputs)]
        return replace(known, copies=rules)

    def _of(self, stored: dict[str, Copies]) -> dict[str, Copies]:
        for each in stored.values():
            numbers = (each.least, each.below, each.tied_shard + 1, each.tied_before)
            if not all(0 <= number <= _LOTS for number in numbers):
                raise ValueError("a number is out of range")
        return {name: stored[name] for name in self.mix.names}

    def _chosen(self, survey: Extraction) -> dict[str, Copies]:
        mix, numbers = self.mix, {name: number for number, name in enumerate(self.mix.names)}
        inputs = np.array([numbers[parted(shard.name)[0]] for shard in self.job.inputs], np.int32)
        totals = np.zeros(len(numbers), np.int64)
        for ordinal, facts in survey.done.items():
            totals[inputs[ordinal]] += facts.records
        records = dict(zip(numbers, totals.tolist(), strict=True))
        wanted = wanted_records(mix, records, may_copy=not self.job.pipeline.deduplication)
        most = [max(records[name], 1) for name in numbers]
        parts = [divmod(wanted.get(name, 0), most[number]) for name, number in numbers.items()]
        draws = KeyDraws(survey.stage.name, mix.seed, tuple(numbers), inputs)
        classes = np.arange(len(numbers), dtype=np.uint64)
        more = np.array([[part] for _, part in parts], np.int64)
        found = Selection(self.job, survey, draws, classes, LOT_BITS).borders(more, totals)
        chosen = {}
        for name, number in numbers.items():
            if name not in wanted:
                chosen[name] = _of_weight(mix.weights[number])
                continue
            shard, before = divmod(int(found.position[number, 0]), ORDINALS)
            tied = (shard, before) if before or shard else (-1, 0)
            least, lot = parts[number][0], int(found.lot[number, 0])
            chosen[name] = Copies(least, lot if parts[number][1] else 0, *tied)
        return chosen


def _of_weight(weight: Fraction) -> Copies:
    least = int(weight)
    return Copies(least, ceil((weight - least) * _LOTS), -1, 0)
