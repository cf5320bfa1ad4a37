"""The content of buckets at a service: shards, records, and members with their content; and objects
that may be removed: leftovers of dead jobs, old results of schedules."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from dsort.model.base import Model, Time


class BucketList(Model):
    """Buckets that a token may read."""

    buckets: list[str] = Field(
        description="Each as a spec names it.", examples=[["images", "s3://data/images"]]
    )


class ObjectRow(Model):
    """One object."""

    name: str = Field(examples=["train-000007.tar"])
    size_bytes: int = Field(examples=[104857600])


class ObjectList(Model):
    """Objects of a bucket, in byte order of their names."""

    bucket: str = Field(description="Its URI.", examples=["s3://data/images"])
    objects: list[ObjectRow]
    next_cursor: str | None = Field(default=None, examples=[None])


class ShardRow(Model):
    """One shard."""

    name: str = Field(examples=["train-000007.tar"])
    size_bytes: int = Field(examples=[104857600])
    records: int | None = Field(
        description="As in the manifest of the job that wrote the shard; null without a manifest.",
        examples=[1000],
    )


class ShardPage(Model):
    """Shards of a bucket, in byte order of their names."""

    bucket: str = Field(description="Its URI.", examples=["s3://data/images"])
    shards: list[ShardRow]
    next_cursor: str | None = Field(default=None, examples=[None])


class RecordMember(Model):
    """One member of a record."""

    name: str = Field(examples=["0001.jpg"])
    extension: str = Field(description="The part of the name after the key.", examples=[".jpg"])
    size_bytes: int = Field(examples=[48213])


class RecordRow(Model):
    """One record."""

    number: int = Field(description="In its shard, from 0 on.", examples=[12])
    key: str = Field(examples=["0001"])
    members: list[RecordMember] = Field(description="The first members of the record.")
    members_total: int = Field(examples=[1])
    size_bytes: int = Field(description="Of all members' payloads.", examples=[48213])


class RecordPage(Model):
    """Records of a shard, in its order."""

    total: int = Field(description="How many the shard has.", examples=[1000])
    records: list[RecordRow]
    next_number: int | None = Field(description="`first` of the next page.", examples=[50])


class ShownMember(RecordMember):
    """A member, and the part of its content that can be shown. ``kind`` follows from the bytes of
    the content, and not from the name."""

    sent_sometimes: ClassVar[frozenset[str]] = frozenset(
        ("kind", "media_type", "width", "height", "text", "hex", "base64", "problem")
    )

    kind: Literal["image", "audio", "json", "text", "bytes"] = Field(
        default="bytes",
        description="SVG and HTML are text.",
        examples=["image"],
    )
    media_type: str = Field(default="application/octet-stream", examples=["image/jpeg"])
    width: int | None = Field(default=None, description="In pixels.", examples=[640])
    height: int | None = Field(default=None, description="In pixels.", examples=[480])
    text: str | None = Field(default=None, description="The first 16 KiB.")
    hex: str | None = Field(default=None, description="The first 256 bytes.")
    base64: str | None = Field(
        default=None, description="All bytes of a picture of up to 256 KiB.", examples=["/9j/4AAQ"]
    )
    problem: str | None = Field(default=None, description="Why the member cannot be read.")


class ShownRecord(RecordRow):
    """A record with its content."""

    members: list[ShownMember]  # type: ignore[assignment]


class ShownRecords(Model):
    """Records with their content."""

    total: int = Field(description="How many the shard has.", examples=[1000])
    records: list[ShownRecord]


class ViewRange(Model):
    """Where the content of a member is, or a part of it."""

    sent_sometimes: ClassVar[frozenset[str]] = frozenset(("shard", "offset", "base64"))

    member: str = Field(examples=["000285.jpg"])
    bytes: int = Field(examples=[10240])
    shard: str = Field(
        default="",
        description="The URI of the input shard.",
        examples=["s3://data/images/s-03.tar"],
    )
    offset: int = Field(default=0, description="In that shard.", examples=[376832])
    base64: str = Field(default="", description="Content that no input has, up to 64 KiB.")


class ViewRecordRow(Model):
    """One record of a view."""

    position: int = Field(description="In the view, from 0 on.", examples=[0])
    key: str = Field(examples=["000285"])
    ranges: list[ViewRange] = Field(description="In the order of members; the first ones, if many.")
    ranges_total: int = Field(examples=[1])


class ViewRecordPage(Model):
    """Records of a view, in its order."""

    total: int = Field(description="How many the view has.", examples=[500])
    records: list[ViewRecordRow]
    next_position: int | None = Field(
        description="`from` of the next page; null at the end.", examples=[50]
    )


class DiskView(Model):
    """The disk of a directory of the service."""

    what: str = Field(description="The use of the directory.", examples=["scratch of jobs"])
    path: str = Field(examples=["/var/lib/dsort/scratch"])
    free_bytes: int = Field(examples=[812345671680])
    total_bytes: int = Field(examples=[1999421054976])


class KeptResult(Model):
    """The result of one run of a schedule, if it still exists."""

    job_id: str = Field(examples=["20260131-015500-0b77e1"])
    due_at: Time = Field(examples=["2026-01-31T02:00:00.000Z"])
    goes_next: bool = Field(
        description="Whether this result is removed when the next run has finished.",
        examples=[False],
    )


class KeptResults(Model):
    """The results that a schedule keeps."""

    schedule: str = Field(examples=["nightly"])
    owner: str = Field(examples=["alice"])
    output_bucket: str = Field(examples=["s3://data/shuffled"])
    retain: int | None = Field(description="Null: all results.", examples=[7])
    results: list[KeptResult] = Field(description="The newest first, at most 100.")


class StorageView(Model):
    """The free space of disks, and the results that schedules keep."""

    disks: list[DiskView]
    schedules: list[KeptResults]


class GarbageView(Model):
    """One leftover of a dead job."""

    kind: str = Field(description="job, file, upload or scratch.", examples=["job"])
    where: str = Field(examples=[".dsort/20260131-015500-0b77e1"])
    what: str = Field(examples=["a job that died"])
    job_id: str = Field(examples=["20260131-015500-0b77e1"])
    objects: int = Field(examples=[12])
    size_bytes: int = Field(examples=[104857600])
    age_s: float = Field(description="Since it was last written to.", examples=[90000.0])
    resumable: bool = Field(description="Whether the job can be resumed.", examples=[True])
    is_old: bool = Field(
        description="Whether `dsort gc` lists it by default: it is at least a day old.",
        examples=[True],
    )


class GarbageList(Model):
    """The remains of dead jobs in a bucket, and in the service's scratch for it."""

    bucket: str = Field(examples=["s3://data/shuffled"])
    garbage: list[GarbageView]
