"""The problems and warnings of a verification, its report, and its progress events."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection

import xxhash
from msgspec import Struct, to_builtins

from dsort.errors import InputError
from dsort.html_tables import fields_html, rows_html
from dsort.results.report import Event, JobWarning, PhaseDone, Progress
from dsort.sizes import format_count

NOT_CHECKED = (
    "the content of the other shards: only their names, sizes and counts in the manifest",
    "records against the inputs: that none is missing, changed or from elsewhere",
    "equal keys in two shards of which one was not read",
    "the content of the lineage, and of files beside shards that were not read",
)


class Sample(Struct, frozen=True):
    """A random ``part`` (above 0, at most 1) of the shards of a result; false if that is all of
    them. The same ``seed`` draws the same shards."""

    part: float
    seed: str

    @staticmethod
    def of(part: float, seed: str) -> Sample:
        """The sample of that ``part``. ``InputError`` if it is no part."""
        if not 0 < part <= 1:
            raise InputError(f"a sample is a part above 0, and at most 1, not {part}")
        return Sample(part, seed)

    def __bool__(self) -> bool:
        return self.part < 1

    def drawn(self, shards: Collection[str]) -> frozenset[str]:
        """The shards to read: at least one, unless the result has none."""
        ranked = sorted(shards, key=lambda name: xxhash.xxh3_64_digest(_text(self.seed, name)))
        return frozenset(ranked[: math.ceil(self.part * len(shards))])


class SampleReport(Struct, frozen=True):
    """The share of a result that was read: ``shards`` of its output shards. ``not_checked``: the
    checks that the report therefore lacks."""

    part: float
    seed: str
    shards: int
    not_checked: tuple[str, ...] = NOT_CHECKED


def _text(seed: str, name: str) -> bytes:
    return f"{len(seed)} {seed}{name}".encode("utf-8", "surrogateescape")


PROBLEMS_MAX = 100
"""The number of problems that are named; all are counted."""

PHASE = "verify"


# The kinds of problems:
#
# replaced          shards of a later job have the names of the result's: nothing is read
# manifest          the manifest contradicts itself, or lists inputs in another order than the spec
# missing_shard     an output shard is not there
# corrupt_shard     a shard cannot be read as a tar to its end
# incomplete_shard  an input does not end as a whole tar does, and the spec says to abort then
# size              an output shard has another length than in the manifest
# checksum          an output shard has another XXH3-64 than in the manifest
# counts            another count than in the manifest: of records, or an output's members or bytes
# format            an output shard holds more than raw members and an end marker
# name              an output shard has another name than the template gives for its place
# cut               an output shard ends too early or too late
# missing_record    a record of the inputs is in no output, and no policy of the spec leaves it out
# changed_bytes     a record's members or their bytes (headers, payload) are not the input's
# split_record      a record's members are not side by side
# doubled_record    a record is in the outputs more often than in the inputs
# undropped_record  a record is there that the spec says to drop
# foreign_record    a record is in no input
# misplaced_record  the external key map gives the record another template
# duplicate_key     two records have one key, though duplicate_keys says drop, rename or abort
# order             a record is before one that should come first; ties keep input order
# index             the wids index, or another sidecar, does not agree with the shards
class VerifyProblem(Struct, frozen=True):
    """One difference between a result and its manifest or its inputs."""

    kind: str  # missing_record | doubled_record | changed_bytes | checksum | order | ...
    shard: str
    record: str  # "" if the problem is one of the whole shard
    text: str


class VerifyReport(Struct, frozen=True):
    """The report of ``dsort verify``. ``problem_count`` counts all problems, ``problems`` holds the
    first ones. ``sample``: None if the whole result was read."""

    job_id: str
    output_uri: str
    input_shards: int
    output_shards: int
    records: int = 0
    members: int = 0
    bytes_read: int = 0
    elapsed_s: float = 0.0
    problem_count: int = 0
    problems: tuple[VerifyProblem, ...] = ()
    warnings: tuple[str, ...] = ()
    sample: SampleReport | None = None

    @property
    def ok(self) -> bool:
        """Whether no problem was found."""
        return self.problem_count == 0

    @property
    def _verdict(self) -> str:
        verdict = "ok" if self.ok else format_count(self.problem_count, "difference")
        return verdict + (" in a sample" if self.sample else "")

    def __repr__(self) -> str:
        records = format_count(self.records, "record")
        return f"<VerifyReport {self.job_id} {self._verdict}: {records} in {self.output_uri}>"

    def _repr_html_(self) -> str:
        """The report as HTML, for a notebook."""
        head = fields_html(
            f"verify {self.job_id}: {self._verdict}",
            [("result", self.output_uri), ("records", f"{self.records:,}")],
        )
        if self.ok:
            return head
        rows = ((each.kind, each.shard, each.record, each.text) for each in self.problems)
        return head + rows_html(("what", "shard", "record", "details"), rows, self.problem_count)

    def to_dict(self) -> dict[str, object]:
        """The report in JSON types."""
        return {"ok": self.ok, **to_builtins(self)}


class Findings:
    """Problems and warnings, in the order they were found."""

    def __init__(self, job_id: str, on_event: Callable[[Event], None]) -> None:
        self._job_id = job_id
        self._on_event = on_event
        self.count = 0
        self.problems: list[VerifyProblem] = []
        self.warnings: list[str] = []

    @property
    def room(self) -> int:
        """How many more problems can be named."""
        return PROBLEMS_MAX - len(self.problems)

    def problem(self, kind: str, shard: str, record: str, text: str) -> None:
        """Add a problem; it is named if there is room."""
        self.count += 1
        if self.room > 0:
            self.problems.append(VerifyProblem(kind, shard, record, text))

    def unnamed(self, count: int) -> None:
        """Count ``count`` more problems without naming them."""
        self.count += count

    def warn(self, kind: str, text: str) -> None:
        """Add a warning about something that is no fault of the result."""
        self.warnings.append(text)
        self._on_event(JobWarning(self._job_id, kind, text))


class ProgressTeller:
    """Sends events with the numbers of shards, records and bytes read so far."""

    def __init__(self, job_id: str, on_event: Callable[[Event], None]) -> None:
        self._job_id = job_id
        self._on_event = on_event
        self._began_s = time.monotonic()
        self._shards = self._records = self._bytes = 0
        self._shards_total = self._bytes_total = 0

    @property
    def elapsed_s(self) -> float:
        """Seconds since the verification began."""
        return time.monotonic() - self._began_s

    def expect(self, *, shards: int, bytes_total: int) -> None:
        """Set how much there is to read."""
        self._shards_total, self._bytes_total = shards, bytes_total
        self._tell()

    def advance(self, *, shards: int, records: int, bytes_done: int) -> None:
        """Count what has been read."""
        self._shards += shards
        self._records += records
        self._bytes += bytes_done
        self._tell()

    def done(self) -> None:
        """Send the event that everything has been read and compared."""
        self._on_event(
            PhaseDone(self._job_id, PHASE, self.elapsed_s, self._shards, self._records, self._bytes)
        )

    def _tell(self) -> None:
        self._on_event(
            Progress(
                self._job_id,
                PHASE,
                self._shards,
                self._shards_total,
                self._records,
                self._bytes,
                self._bytes_total,
                self.elapsed_s,
            )
        )
