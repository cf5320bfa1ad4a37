"""What AIStore's routes take and answer, for the OpenAPI document: ``JobInfo``, and examples."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["KEY_MAP", "KEY_MAP_SCHEMA", "PEER_JOB", "JobInfo"]


class _View(BaseModel):
    model_config = ConfigDict(extra="allow")


class BucketModel(_View):
    """A bucket in AIStore's words."""

    name: str
    provider: str = Field(examples=["ais", "aws"])
    namespace: dict[str, str]


class JobMetrics(_View):
    """What was done, by AIStore's phases. Counters are texts, durations nanoseconds."""

    local_extraction: dict[str, Any]
    meta_sorting: dict[str, Any]
    shard_creation: dict[str, Any]
    description: str
    warnings: list[str]
    errors: list[str]
    aborted: bool
    archived: bool


class JobInfo(_View):
    """A job as AIStore's clients know it. A time that is not known is in the year 1."""

    id: str
    src_bck: BucketModel = Field(alias="src-bck")
    dst_bck: BucketModel = Field(alias="dst-bck")
    started_time: str
    finish_time: str
    started_meta_sorting: int = Field(description="How long extraction took, in nanoseconds.")
    started_shard_creation: int = Field(description="How long sorting took, in nanoseconds.")
    finished_shard_creation: int = Field(description="How long creation took, in nanoseconds.")
    loc_objs: str = Field(alias="loc-objs", description="Input shards.")
    loc_bytes: str = Field(alias="loc-bytes")
    metrics: JobMetrics = Field(alias="Metrics")
    aborted: bool = Field(description="It failed or was stopped.")
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
    "id": "20260131-020000-4f2a9c",
    "src-bck": {"name": "data/images", "provider": "aws", "namespace": {"uuid": "", "name": ""}},
    "dst-bck": {"name": "data/shuffled", "provider": "aws", "namespace": {"uuid": "", "name": ""}},
    "started_time": "2026-01-31T02:00:01Z",
    "finish_time": "2026-01-31T02:00:11.500000Z",
    "started_meta_sorting": 4300000000,
    "started_shard_creation": 300000000,
    "finished_shard_creation": 4800000000,
    "loc-objs": "19",
    "loc-bytes": "1912340480",
    "Metrics": {
        "local_extraction": {
            "started_time": "2026-01-31T02:00:01Z",
            "end_time": "2026-01-31T02:00:05.300000Z",
            "elapsed": 4300000000,
            "running": False,
            "finished": True,
            "total_count": "19",
            "extracted_count": "19",
            "extracted_size": "1912340480",
            "extracted_record_count": "19000",
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
