"""What is stored and may go: what dead jobs left, results that schedules remove, room on disks."""

from __future__ import annotations

from pydantic import Field

from dsort.model.base import Model, Time


class DiskView(Model):
    """The disk that a directory of the service is on."""

    what: str = Field(description="What is there.", examples=["scratch of jobs"])
    path: str = Field(examples=["/var/lib/dsort/scratch"])
    free_bytes: int = Field(examples=[812345671680])
    total_bytes: int = Field(examples=[1999421054976])


class KeptResult(Model):
    """The result of one run of a schedule that is still there."""

    job_id: str = Field(examples=["20260131-015500-0b77e1"])
    due_at: Time = Field(examples=["2026-01-31T02:00:00.000Z"])
    goes_next: bool = Field(
        description="Whether it is removed when the next run has finished.", examples=[False]
    )


class KeptResults(Model):
    """What a schedule keeps."""

    schedule: str = Field(examples=["nightly"])
    owner: str = Field(examples=["alice"])
    output_bucket: str = Field(examples=["s3://data/shuffled"])
    retain: int | None = Field(description="Null: all results.", examples=[7])
    results: list[KeptResult] = Field(description="The newest first, at most 100.")


class StorageView(Model):
    """Room, and what schedules keep."""

    disks: list[DiskView]
    schedules: list[KeptResults]


class GarbageView(Model):
    """One thing that a dead job left."""

    kind: str = Field(description="job, file, upload or scratch.", examples=["job"])
    where: str = Field(examples=[".dsort/20260131-015500-0b77e1"])
    what: str = Field(examples=["a job that died"])
    job_id: str = Field(examples=["20260131-015500-0b77e1"])
    objects: int = Field(examples=[12])
    size_bytes: int = Field(examples=[104857600])
    age_s: float = Field(description="Since it was last written to.", examples=[90000.0])
    resumable: bool = Field(description="Whether the job can go on.", examples=[True])
    is_old: bool = Field(
        description="Whether `dsort gc` lists it without more being said: it is a day old.",
        examples=[True],
    )


class GarbageList(Model):
    """What dead jobs left in a bucket, and in the service's scratch for it."""

    bucket: str = Field(examples=["s3://data/shuffled"])
    garbage: list[GarbageView]
