"""``JobInfo`` and its metrics, as AIStore's clients expect them, made from a row of the database.

The formats are those of ``api/apc`` and ``ext/dsort/api_metrics.go`` of AIStore 5.0. This module
also has the models and examples of AIStore's routes in the OpenAPI document.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field

from dsort.errors import SpecError
from dsort.service.database.tables import JobRow, split_uris
from dsort.service.jobs.rows import NOT_READ
from dsort.spec.buckets import parse_bucket
from dsort.storage.registry import provider_of


class _View(BaseModel):
    model_config = ConfigDict(extra="allow")


class JobMetrics(_View):
    """The work of a job, by AIStore's phases. Counters are texts, durations nanoseconds."""

    local_extraction: dict[str, Any]
    meta_sorting: dict[str, Any]
    shard_creation: dict[str, Any]
    description: str
    warnings: list[str]
    errors: list[str]
    aborted: bool
    archived: bool


class BucketModel(BaseModel):
    """A bucket in the form of AIStore's clients. A directory under the data root is a bucket of
    provider ``ais``."""

    name: str
    provider: str = Field(examples=["ais", "aws"])
    namespace: dict[str, str]


class JobInfo(_View):
    """A job in the form of AIStore's clients. An unknown time is in the year 1."""

    id: str
    src_bck: BucketModel = Field(alias="src-bck")
    dst_bck: BucketModel = Field(alias="dst-bck")
    started_time: str
    finish_time: str
    started_meta_sorting: int = Field(description="How long extraction took, in nanoseconds.")
    started_shard_creation: int = Field(description="How long sorting took, in nanoseconds.")
    finished_shard_creation: int = Field(description="How long creation took, in nanoseconds.")
    loc_objs: str = Field(alias="loc-objs", description="Input shards.")
    loc_bytes: str = Field(alias="loc-bytes", description="Payload of all members, in bytes.")
    metrics: JobMetrics = Field(alias="Metrics")
    aborted: bool = Field(description="The job failed or was stopped.")
    archived: bool = Field(description="It is over.")


KEY_MAP_SCHEMA: Final = {
    "type": "object",
    "additionalProperties": {"type": "array", "items": {"type": "string"}},
}
KEY_MAP: Final = {"cats-%04d.tar": ["cat-0001", "cat-0002"], "dogs-%04d.tar": ["dog-0001"]}
_NO_TIMES: Final = {
    "total_ms": "0",
    "count": "0",
    "min_ms": "9223372036854775807",
    "max_ms": "0",
    "avg_ms": "0",
}
PEER_JOB: Final[dict[str, Any]] = {
    "id": "srt-20260131-020000-4f2a9c",
    "src-bck": {"name": "data/images", "provider": "aws", "namespace": {"uuid": "", "name": ""}},
    "dst-bck": {"name": "data/shuffled", "provider": "aws", "namespace": {"uuid": "", "name": ""}},
    "started_time": "2026-01-31T02:00:01Z",
    "finish_time": "2026-01-31T02:00:11.500000Z",
    "started_meta_sorting": 4300000000,
    "started_shard_creation": 300000000,
    "finished_shard_creation": 4800000000,
    "loc-objs": "19",
    "loc-bytes": "1854000000",
    "Metrics": {
        "local_extraction": {
            "started_time": "2026-01-31T02:00:01Z",
            "end_time": "2026-01-31T02:00:05.300000Z",
            "elapsed": 4300000000,
            "running": False,
            "finished": True,
            "total_count": "19",
            "extracted_count": "19",
            "extracted_size": "1854000000",
            "extracted_record_count": "38000",
            "extracted_to_disk_count": "0",
            "extracted_to_disk_size": "0",
        },
        "meta_sorting": {
            "started_time": "2026-01-31T02:00:05.300000Z",
            "end_time": "2026-01-31T02:00:05.600000Z",
            "elapsed": 300000000,
            "running": False,
            "finished": True,
            "sent_stats": _NO_TIMES,
            "recv_stats": _NO_TIMES,
        },
        "shard_creation": {
            "started_time": "2026-01-31T02:00:05.600000Z",
            "end_time": "2026-01-31T02:00:11.500000Z",
            "elapsed": 4800000000,
            "running": False,
            "finished": True,
            "to_create": "2",
            "created_count": "2",
            "moved_shard_count": "0",
        },
        "description": "Shuffle the images",
        "warnings": ["1 of 20 input shards is missing: samples-07.tar"],
        "errors": [],
        "aborted": False,
        "archived": True,
    },
    "aborted": False,
    "archived": True,
}


TARGET: Final = "dsort"
"""The one target that a job of this service has. A cluster has a ``JobInfo`` for each target."""

_PREFIX: Final = "srt-"
"""The prefix of every dSort job id: AIStore's command line recognizes dSort jobs by this prefix."""

ZERO_TIME: Final = "0001-01-01T00:00:00Z"

_NS: Final = 10**9
_WARNINGS_MAX: Final = 1000  # of each kind
_ABSENT: Final = '"{name}" does not exist'
_TWICE: Final = 'record "{name}" is duplicated'
_LEFT_OUT: Final = re.compile("the output shards take .* but their payload is ")
"""AIStore does not compare sizes, and its clients count warnings, so this warning is left out."""
# By kind: the beginning of the warning for all items, and the warning for one item.
_WARNED_ONE_BY_ONE: Final = {
    "missing_shards": (re.compile(r"[\d,]+ input shards? (is|are) missing"), _ABSENT),
    "duplicated_records": (re.compile(r"[\d,]+ members? occurs? again"), _TWICE),
}
_NO_MINIMUM: Final = 2**63 - 1  # AIStore's value where nothing was measured
_EXTRACTION: Final = ("resolve", "extract")
_SORTING: Final = ("plan",)
_CREATION: Final = ("create", "commit")
_GROUPS: Final = (_EXTRACTION, _SORTING, _CREATION)

Json = dict[str, Any]


def go_time(seconds: float | None) -> str:
    """Seconds since 1970 in Go's format of times (RFC 3339, UTC); None is its zero time."""
    if seconds is None:
        return ZERO_TIME
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def peer_id(job_id: str) -> str:
    """The id that AIStore's clients have for a job."""
    return _PREFIX + job_id


def own_id(job_id: str) -> str:
    """The id of a job in this service. ``job_id``: this id, or AIStore's id for the job."""
    return job_id.removeprefix(_PREFIX)


def bucket_model(uri: str, root: Path | None = None) -> dict[str, Any]:
    """The ``BucketModel`` of ``uri``. A directory under ``root`` has its name in specs, any other
    directory its path; a prefix stays a part of the name."""
    try:
        ref = parse_bucket(uri)
    except SpecError:  # the service that wrote the row could parse it
        return {"name": uri, "provider": "", "namespace": {"uuid": "", "name": ""}}
    name = ref.uri if ref.scheme in ("http", "https") else ref.path
    provider = provider_of(ref.scheme)
    if ref.scheme == "file" and root is not None and PurePath(name).is_relative_to(root):
        name, provider = str(PurePath(name).relative_to(root)), "ais"
    return {"name": name, "provider": provider, "namespace": {"uuid": "", "name": ""}}


def job_info(
    row: JobRow,
    root: Path | None = None,
    *,
    warnings: Sequence[str] = (),
    named: Mapping[str, Sequence[str]] | None = None,
) -> Json:
    """``JobInfo`` of a job. ``root``: of the service. ``warnings``: their texts so far, if the job
    has no result yet. ``named``: names by kind of reaction, if the result has only samples (see
    ``kinds_to_name``).

    ``aborted``: the job failed or was stopped. ``archived``: the job has ended, and its metrics are
    final. The durations of AIStore's three phases have the names of AIStore's JSON. Parts of the
    row that cannot be read are left out.
    """
    try:
        return _info(row, root, warnings, named or {})
    except NOT_READ:
        bare = replace(
            row, phases=None, progress=None, result=None, error=None, started_at=None, ended_at=None
        )
        bare = replace(bare, created_at=0.0)
        return _info(bare, root, (), {})


def _info(
    row: JobRow, root: Path | None, warnings: Sequence[str], named: Mapping[str, Sequence[str]]
) -> Json:
    facts = _Facts(row)
    extraction, sorting, creation = (facts.span(group) for group in _GROUPS)
    return {
        "id": peer_id(row.job_id),
        "src-bck": bucket_model(split_uris(row.input_uri)[0], root),
        "dst-bck": bucket_model(split_uris(row.output_uri)[0], root),
        "started_time": go_time(facts.started_at),
        "finish_time": go_time(row.ended_at),
        "started_meta_sorting": extraction.elapsed_ns,
        "started_shard_creation": sorting.elapsed_ns,
        "finished_shard_creation": creation.elapsed_ns,
        "loc-objs": str(facts.extracted["shards"]),
        "loc-bytes": str(facts.extracted["bytes"]),
        "Metrics": {
            "local_extraction": extraction.view() | _extraction_counts(facts),
            "meta_sorting": sorting.view() | {"sent_stats": _no_times(), "recv_stats": _no_times()},
            "shard_creation": creation.view() | _creation_counts(facts),
            "description": row.description,
            "warnings": _one_each(facts.result, named) or _counted_there(warnings),
            "errors": _errors(row),
            "aborted": facts.aborted,
            "archived": row.ended,
        },
        "aborted": facts.aborted,
        "archived": row.ended,
    }


def job_status(row: JobRow) -> Json:
    """AIStore's status of a job that a client waits for; ``end_time``: nanoseconds since 1970, 0
    until the job has ended."""
    return {
        "kind": "dsort",
        "uuid": peer_id(row.job_id),
        "err": "; ".join(_errors(row)),
        "end_time": round(row.ended_at * _NS) if row.ended and row.ended_at else 0,
        "aborted": row.state in ("failed", "stopped"),
    }


def job_snap(row: JobRow, root: Path | None = None) -> Json:
    """The job in AIStore's form for jobs of all kinds ("xactions")."""
    info = job_info(row, root)
    metrics = info["Metrics"]
    none = dict.fromkeys(("out-objs", "out-bytes", "in-objs", "in-bytes"), "0")
    return {
        "id": info["id"],
        "kind": "dsort",
        "bck": info["src-bck"],
        "src-bck": info["src-bck"],
        "dst-bck": info["dst-bck"],
        "start-time": info["started_time"],
        "end-time": info["finish_time"],
        "stats": {"loc-objs": info["loc-objs"], "loc-bytes": info["loc-bytes"], **none},
        "aborted": info["aborted"],
        "is_idle": row.ended,
        "abort-err": "; ".join(metrics["errors"]),
        "ext": metrics,
    }


class _Span(Struct, frozen=True):
    """The times of one of AIStore's three phases."""

    began_at: float | None
    ended_at: float | None
    seconds: float
    running: bool
    finished: bool

    @property
    def elapsed_ns(self) -> int:
        return round(self.seconds * _NS)

    def view(self) -> Json:
        return {
            "started_time": go_time(self.began_at),
            "end_time": go_time(self.ended_at),
            "elapsed": self.elapsed_ns,
            "running": self.running,
            "finished": self.finished,
        }


class _Facts:
    """The facts that the row of a job has about its phases, in any state of the job."""

    def __init__(self, row: JobRow) -> None:
        self.row = row
        self.done = {each["phase"]: each for each in row.phases or ()}
        # The progress of the current phase, or of the phase in which the job failed.
        self.last: Mapping[str, Any] = row.progress or {}
        self.result: Mapping[str, Any] = row.result or {}
        self.aborted = row.state in ("failed", "stopped")
        self.finished = row.state == "finished"

    @property
    def extracted(self) -> Json:
        """Input shards, their members, and the payload of the members."""
        counted = self._counted("extract")
        if "input_shards" in self.result:
            counted["shards"] = counted["total"] = self.result["input_shards"]
        return counted

    @property
    def created(self) -> Json:
        """Output shards; a dry run plans some and writes none."""
        counted = self._counted("create")
        if self.finished and self.row.kind == "plan":
            planned = self.result.get("shards_total", len(self.result.get("shards", ())))
            return {**counted, "total": planned}
        if self.finished and "output_shards" in self.result:
            shards = self.result["output_shards"]
            return {**counted, "shards": shards, "total": shards}
        return counted

    def span(self, group: Sequence[str]) -> _Span:
        """One of AIStore's phases; ``group``: the phases of dsort that it consists of."""
        at = _GROUPS.index(tuple(group))
        met = self._met(group)
        passed = self._met([name for names in _GROUPS[at + 1 :] for name in names])
        # The last phase ends once the manifest is stored, not with its last shard.
        finished = self.finished or (at + 1 < len(_GROUPS) and (group[-1] in self.done or passed))
        running = self.row.state == "running" and met and not finished
        seconds = sum(self.done[name]["seconds"] for name in group if name in self.done)
        if self.last.get("phase") in group and self.last["phase"] not in self.done:
            seconds += self.last["elapsed_s"]
        if self.row.started_at is None or not (met or finished):
            # AIStore's command computes the time since the first phase began, whatever the state.
            return _Span(self.started_at if at == 0 else None, None, seconds, running, finished)
        began_at = self.row.started_at + self._seconds_before(at)
        if running:
            return _Span(began_at, None, seconds, running, finished)
        is_last = not passed and self.row.ended
        return _Span(
            began_at, self.row.ended_at if is_last else began_at + seconds, seconds, False, finished
        )

    @property
    def started_at(self) -> float:
        """In AIStore a job starts when it is submitted."""
        return self.row.created_at if self.row.started_at is None else self.row.started_at

    def _met(self, names: Sequence[str]) -> bool:
        return any(name in self.done or name == self.last.get("phase") for name in names)

    def _seconds_before(self, at: int) -> float:
        before = [name for names in _GROUPS[:at] for name in names]
        return float(sum(self.done[name]["seconds"] for name in before if name in self.done))

    def _counted(self, phase: str) -> Json:
        counts = dict.fromkeys(("shards", "members", "bytes", "total"), 0)
        if phase in self.done:
            done = self.done[phase]
            counts |= {"shards": done["shards"], "total": done["shards"]}
            counts |= {"members": done.get("members", 0), "bytes": done.get("payload_bytes", 0)}
        elif self.last.get("phase") == phase:
            last = self.last
            counts |= {"shards": last["shards_done"], "total": last["shards_total"]}
            counts |= {
                "members": last.get("members_done", 0),
                "bytes": last.get("payload_bytes_done", 0),
            }
        return counts


def _extraction_counts(facts: _Facts) -> Json:
    extracted = facts.extracted
    spilled = facts.result.get("move") == "spill"
    return {
        "total_count": str(extracted["total"]),
        "extracted_count": str(extracted["shards"]),
        "extracted_size": str(extracted["bytes"]),
        "extracted_record_count": str(extracted["members"]),  # AIStore counts members
        "extracted_to_disk_count": str(extracted["shards"] if spilled else 0),
        "extracted_to_disk_size": str(extracted["bytes"] if spilled else 0),
    }


def _creation_counts(facts: _Facts) -> Json:
    return {
        "to_create": str(facts.created["total"]),
        "created_count": str(facts.created["shards"]),
        "moved_shard_count": "0",
    }


def _no_times() -> Json:
    """No record metadata travels between targets, because a service is one target."""
    none = dict.fromkeys(("total_ms", "count", "min_ms", "max_ms", "avg_ms"), "0")
    return {**none, "min_ms": str(_NO_MINIMUM)}


def kinds_to_name(result: Mapping[str, Any]) -> dict[str, int]:
    """By kind of reaction, the number of names that AIStore's warnings need. Only kinds whose names
    are not all in the result."""
    counted = {each["kind"]: each for each in result.get("reactions") or ()}
    needed = {
        kind: min(counted[kind]["count"], _WARNINGS_MAX)
        for kind in _WARNED_ONE_BY_ONE
        if kind in counted
    }
    return {kind: count for kind, count in needed.items() if count > len(counted[kind]["samples"])}


def _counted_there(warnings: Iterable[str]) -> list[str]:
    return [text for text in warnings if not _LEFT_OUT.match(text)]


def _one_each(result: Mapping[str, Any], named: Mapping[str, Sequence[str]]) -> list[str]:
    """The warnings of a result. Where AIStore warns once for each item, the answer has a warning
    for each item, too, because AIStore's users count warnings. ``named``: the names of items by
    kind; for other kinds only the first items have names."""
    counted = {each["kind"]: each for each in result.get("reactions") or ()}
    texts: list[str] = []
    for text in _counted_there(result.get("warnings") or ()):
        for kind, (words, one) in _WARNED_ONE_BY_ONE.items():
            found = counted.get(kind)
            if found and words.match(text):
                shown = min(found["count"], _WARNINGS_MAX)
                known = max(named.get(kind, ()), found["samples"], key=len)
                names = [*known, *["one of the others"] * shown][:shown]
                texts += [one.format(name=name) for name in names]
                break
        else:
            texts.append(text)
    return texts


def _errors(row: JobRow) -> list[str]:
    if row.state == "stopped":
        why = f": {row.stop_reason}" if row.stop_reason else ""
        return [f"[dsort] {peer_id(row.job_id)} aborted{why}"]
    if row.state == "failed":
        error = row.error or {}
        text = error.get("detail") or "the job failed"
        hint = error.get("hint")
        return [f"{text} (hint: {hint})" if hint else text]
    return []
