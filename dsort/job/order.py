"""Ordering: every bucket in output order, in some home, and again where one was lost."""

from __future__ import annotations

from dataclasses import dataclass, field

from dsort.errors import InvariantError
from dsort.job.extract import Extraction, answers
from dsort.job.job import Job
from dsort.scratch.requests import RemoveSpill
from dsort.workers.tasks import OrderDone, OrderTask

__all__ = ["Ordering"]

FREED_SHARE = 32
"""The journal is written at least each time that so great a share of the buckets is spent: scratch
is to shrink as the outputs grow."""


@dataclass(slots=True, eq=False)
class Ordering:
    """All buckets of one extraction. ``drop``: the shared file of records to leave out, or "".

    ``facts``: what is known of each bucket, for good; ``_homes``: where it is in order now.
    ``_spent``: buckets whose records are all written.
    """

    job: Job
    extraction: Extraction
    drop: str = ""
    facts: dict[int, OrderDone] = field(default_factory=dict)
    _homes: dict[int, str] = field(default_factory=dict)
    _where: str = ""
    _spent: set[int] = field(default_factory=set)
    _unfreed: set[int] = field(default_factory=set)

    @property
    def where(self) -> str:
        """The shared file that says which home has which shard."""
        return self.extraction.where

    @property
    def buckets(self) -> int:
        """How many there are."""
        return self.extraction.buckets

    def complete(self) -> None:
        """Order what is not in order, or lies elsewhere by now than when it was ordered."""
        self.extraction.complete()
        if self._where != self.where:
            self._homes.clear()
            self._where = self.where
        missing = [
            bucket
            for bucket in range(self.buckets)
            if bucket not in self._homes and bucket not in self._spent
        ]
        tasks = (OrderTask(bucket, self.where, self.drop) for bucket in missing)
        for _, facts in answers(self.job, tasks):
            assert isinstance(facts, OrderDone)
            self._take(facts)

    def lose(self, home: str) -> None:
        """See :class:`~dsort.job.extract.Restaged`."""
        self.extraction.lose(home)

    def home_of(self, bucket: int) -> str:
        """The home that has a bucket in order."""
        return self._homes[bucket]

    def in_order(self) -> list[OrderDone]:
        """What is known of all buckets, in their order."""
        return [self.facts[bucket] for bucket in range(self.buckets)]

    def spend(self, buckets: tuple[int, ...]) -> None:
        """Their records are written: the room that their spill takes is free, as soon as the
        journal says so. Whoever goes on with the job could not write them again."""
        self._spent.update(buckets)
        if self.extraction.spill:
            self._unfreed.update(buckets)
            if len(self._unfreed) * FREED_SHARE >= self.buckets:
                self.job.flush()
        self.free()

    def want_all(self) -> None:
        """From now on what is spent has to be in order, too: written records are compared with it,
        for which their spill is not needed."""
        self._spent.clear()

    def free(self) -> None:
        """Give back the room of what is spent, as far as it may be."""
        if self._unfreed and self.job.is_recorded:
            freed = tuple(sorted(self._unfreed))
            self._unfreed.clear()
            for home, workers in self.extraction.spilled_by().items():
                self.job.runtime.tell(home, RemoveSpill(freed, workers))

    def _take(self, facts: OrderDone) -> None:
        self._homes[facts.bucket] = facts.home
        known = self.facts.setdefault(facts.bucket, facts)
        before = (known.records, known.dropped, known.stored_bytes, known.payload_bytes)
        now = (facts.records, facts.dropped, facts.stored_bytes, facts.payload_bytes)
        if before != now:
            raise InvariantError(f"bucket {facts.bucket} has {now} now, it had {before}")
        if known is facts and self.job.state.phase == "plan":
            self.job.advance(records=facts.records, bytes_done=facts.stored_bytes)
