"""What a service shows of the data in a bucket: shards, records, and members with their content."""

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
        description="As the manifest of the job says that wrote it; null where none is known.",
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
    extension: str = Field(description="What is behind the key.", examples=[".jpg"])
    size_bytes: int = Field(examples=[48213])


class MemberTicket(Model):
    """Where a browser's player reads one member, without a token."""

    url: str = Field(
        description="A path of this service, that answers `GET` with `Range`.",
        examples=["/v1/members/images/s-0.tar?number=0&member=1&ticket=1767229200.5f….viewer"],
    )
    expires_at: Time = Field(examples=["2026-01-01T01:00:00.000Z"])


class RecordRow(Model):
    """One record."""

    number: int = Field(description="In its shard, from 0 on.", examples=[12])
    key: str = Field(examples=["0001"])
    members: list[RecordMember] = Field(description="The first of them.")
    members_total: int = Field(examples=[1])
    size_bytes: int = Field(description="Of all members' payloads.", examples=[48213])


class RecordPage(Model):
    """Records of a shard, in its order."""

    total: int = Field(description="How many the shard has.", examples=[1000])
    records: list[RecordRow]
    next_number: int | None = Field(description="`first` of the next page.", examples=[50])


class ShownMember(RecordMember):
    """A member, and what is to be seen of it. Bytes decide what it is, and not its name."""

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
        default=None, description="All bytes, of pictures up to 256 KiB.", examples=["/9j/4AAQ"]
    )
    problem: str | None = Field(default=None, description="Why it cannot be read.")


class ShownRecord(RecordRow):
    """A record with its content."""

    members: list[ShownMember]  # type: ignore[assignment]


class ShownRecords(Model):
    """Records with their content."""

    total: int = Field(description="How many the shard has.", examples=[1000])
    records: list[ShownRecord]
