"""The operators of extraction, in the order in which records pass them."""

from __future__ import annotations

from typing import Final

from dsort.scratch.index import IndexStore
from dsort.workers.batch import Operator
from dsort.workers.conversion import AddMemberDefaults
from dsort.workers.copies import CopyRecords
from dsort.workers.headers import WriteNames
from dsort.workers.join_pieces import LeaveOut
from dsort.workers.origins import NoteOrigins
from dsort.workers.placing import CountPlaced, PlaceRecords, SettlePlaces
from dsort.workers.renamed_keys import RenameKeys
from dsort.workers.tasks import WorkerSetup

OPERATORS: Final[tuple[type[Operator], ...]] = (
    AddMemberDefaults,
    LeaveOut,  # a join decides by the members that records have now
    PlaceRecords,  # neither the key map nor outputs know new keys
    NoteOrigins,  # copies have the origin of their record
    CopyRecords,
    RenameKeys,  # keys that copies repeat are settled, too
    WriteNames,  # once all new names are known
    SettlePlaces,  # exact numbers count copies
    CountPlaced,
)


def operators_of(setup: WorkerSetup, store: IndexStore) -> tuple[Operator, ...]:
    """Those that a job needs, for one worker."""
    return tuple(kind(setup, store) for kind in OPERATORS if kind.is_needed(setup.pipeline))
