"""The names of all files of a job in its output bucket. All but the result are below
``.dsort/``."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from dsort.storage.bucket import INTERNAL_PREFIX

# <output shards>               at the names that the spec sets
# <job id>-index.json           the wids index, if the spec has one
# .dsort/<job id>/
#     manifest.json             the commit; stays
#     reactions.jsonl           names of all that reactions dropped, kept or renamed; stays
#     lineage.parquet, .jsonl   origin and place of each record, if the spec has it; stays
#     removed.json              hashes of the keys that the job removed from a result; stays
#     amended.json              the job that amends this one's result; stays
#     on_shard.json             the shards for which on_shard was done; stays
#     report.json               of an aborted job, in place of a manifest; stays
#     elsewhere.json            in a bucket that some outputs have for themselves: the job's place
#     result.json               there, too, after the commit: the place of the manifest; stays
#     lease.json                the process that runs the job, and until when
#     attempts/0001, ...        the claim of each attempt
#     stop                      a request to the job to stop
#     journal/0001-000000.json  segments of the journal, by attempt
#     journal/shared-<name>     files that all attempts share
#     staged/<ordinal>          output shards without their name; sidecars behind them
#     sidecars/<ordinal>.<kind> the content of sidecars of an output shard
#     replaced/<n>, kept.json   the objects that the output shards replaced
#     scratch/                  of a job on one machine, in a directory
#     write-<token>             an object that is being written
# .dsort/gen-<token>/           synthetic shards without their names
MANIFEST: Final = "manifest.json"
REPORT: Final = "report.json"
RESULT: Final = "result.json"

_STAGED: Final = "staged/"
_JOURNAL: Final = "journal/"
_SIDECARS: Final = "sidecars/"
_REPLACED: Final = "replaced/"
_SCRATCH: Final = "scratch"
_WRITE: Final = "write-"
"""What a directory bucket puts before the token of an object that is being written."""
_LEASE: Final = "lease.json"
_ATTEMPTS: Final = "attempts/"
_STOP: Final = "stop"

RUN_PARTS: Final = (_STAGED, _SIDECARS, f"{_SCRATCH}/", _WRITE, _REPLACED, _JOURNAL)
"""The parts of a job's directory while it runs, without ``HOLD_PARTS``."""
HOLD_PARTS: Final = (_STOP, _LEASE, _ATTEMPTS)
"""The parts that identify the holder of the job: they are removed last."""

_ATTEMPT_NUMBER: Final = re.compile(r"[0-9]{4,9}")
_SEGMENT: Final = re.compile(r"([0-9]{4,9})-([0-9]{6,9})\.json")


def job_directory(job_id: str) -> str:
    """The prefix of all objects of a job, except for its result."""
    return f"{INTERNAL_PREFIX}{job_id}/"


def _inside(part: str) -> Callable[[str], str]:
    """A function that returns the name of a part of a job's directory, by the id of the job."""
    return lambda job_id: f"{job_directory(job_id)}{part}"


def job_of(name: str) -> str:
    """The id of the job whose directory has the object ``name``; "" if it is in no such
    directory."""
    owner, slash, _ = name.removeprefix(INTERNAL_PREFIX).partition("/")
    return owner if slash and name.startswith(INTERNAL_PREFIX) else ""


# -- what stays ----------------------------------------------------------------------------------


manifest_name: Final = _inside(MANIFEST)
report_name: Final = _inside(REPORT)
reactions_name: Final = _inside("reactions.jsonl")
on_shard_name: Final = _inside("on_shard.json")
removed_name: Final = _inside("removed.json")
amended_name: Final = _inside("amended.json")
rejects_name: Final = _inside("rejects.jsonl")


def lineage_name(job_id: str, kind: str) -> str:
    """The lineage of a job; ``kind``: ``parquet`` or ``jsonl``."""
    return f"{job_directory(job_id)}lineage.{kind}"


def lineage_names(job_id: str) -> tuple[str, ...]:
    """All names that the lineage of a job can have."""
    return tuple(lineage_name(job_id, kind) for kind in ("parquet", "jsonl"))


def index_name(job_id: str) -> str:
    """The wids index of a job. It is part of the result, beside the output shards."""
    return f"{job_id}-index.json"


elsewhere_name: Final = _inside("elsewhere.json")
result_name: Final = _inside(RESULT)


# -- the holder of the job -----------------------------------------------------------------------


lease_name: Final = _inside(_LEASE)
attempts_prefix: Final = _inside(_ATTEMPTS)


def attempt_name(job_id: str, attempt: int) -> str:
    """The claim of attempt number ``attempt``, which begins with 1."""
    return f"{attempts_prefix(job_id)}{attempt:04d}"


def attempt_of(name: str) -> int:
    """The number of the attempt that ``name`` claims; 0 if ``name`` is no claim."""
    number = name.rpartition("/")[2]
    return int(number) if _ATTEMPT_NUMBER.fullmatch(number) else 0


def clock_name(job_id: str) -> str:
    """A probe object that is written to read the time of the store."""
    return f"{attempts_prefix(job_id)}clock"


stop_name: Final = _inside(_STOP)


# -- what a later attempt needs ------------------------------------------------------------------


journal_prefix: Final = _inside(_JOURNAL)


def segment_name(job_id: str, attempt: int, sequence: int) -> str:
    """The name of segment ``sequence``, from 0, of the journal of attempt ``attempt``."""
    return f"{journal_prefix(job_id)}{attempt:04d}-{sequence:06d}.json"


def segment_of(name: str) -> tuple[int, int] | tuple[()]:
    """(attempt, sequence) of a segment of a journal; () if ``name`` is no segment."""
    match = _SEGMENT.fullmatch(name.rpartition("/")[2])
    return (int(match[1]), int(match[2])) if match else ()


def shared_name(job_id: str, name: str) -> str:
    """The file ``name`` that all attempts of a job share."""
    return f"{journal_prefix(job_id)}shared-{name}"


# -- what has no name yet, or none any more ------------------------------------------------------


staged_prefix: Final = _inside(_STAGED)
sidecars_prefix: Final = _inside(_SIDECARS)
replaced_prefix: Final = _inside(_REPLACED)


def replaced_list_name(job_id: str) -> str:
    """The list of the objects that a job replaces."""
    return f"{replaced_prefix(job_id)}kept.json"


scratch_name: Final = _inside(_SCRATCH)


def writes_prefix() -> str:
    """The prefix of objects that a writer other than a job has begun to write and not completed."""
    return f"{INTERNAL_PREFIX}{_WRITE}"


def generated_prefix(token: str) -> str:
    """The prefix of synthetic shards that have no names yet."""
    return f"{INTERNAL_PREFIX}gen-{token}/"
