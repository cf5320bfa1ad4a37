"""The users of a service and their actions: tokens, the audit trail; and the answers about
specs."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import Field

from dsort.model.base import Model, Time
from dsort.model.report import EXAMPLE_ID, EXAMPLE_SPEC

_BUCKETS: Final = "Whole URIs of buckets, or beginnings of URIs, each followed by a `*`."


class Me(Model):
    """The identity and the rights of the caller."""

    name: str = Field(examples=["alice"])
    role: Literal["viewer", "submitter", "admin"] = Field(examples=["submitter"])
    input_buckets: tuple[str, ...] = Field(
        default=(), description=_BUCKETS, examples=[["s3://data/*"]]
    )
    output_buckets: tuple[str, ...] = Field(default=(), examples=[["s3://data/alice/*"]])
    authenticated: bool = Field(
        default=True,
        description="False: the service needs no token.",
        examples=[True],
    )
    named_transforms: bool = Field(
        default=False, description="Whether specs may name transforms here.", examples=[True]
    )


class TokenView(Model):
    """A token, without its secret."""

    name: str = Field(examples=["alice"])
    role: Literal["viewer", "submitter", "admin"] = Field(examples=["submitter"])
    input_buckets: list[str] = Field(examples=[["s3://data/*"]])
    output_buckets: list[str] = Field(examples=[["s3://data/alice/*"]])
    created_at: Time = Field(examples=["2026-01-31T02:00:00.000Z"])
    expires_at: Time | None = Field(examples=["2026-05-01T02:00:00.000Z"])


class TokenMade(TokenView):
    """A new token: its text is shown here, and never again."""

    token: str = Field(examples=["dsort_0123456789ab_" + "0" * 48])


class TokenList(Model):
    """All tokens, by name."""

    tokens: list[TokenView]


class AuditEntry(Model):
    """One action of a user."""

    number: int = Field(examples=[12])
    at: Time = Field(examples=["2026-01-31T02:00:00.000Z"])
    who: str = Field(examples=["alice"])
    address: str = Field(
        description="Of the connection; empty for an action on the machine itself.",
        examples=["192.0.2.7"],
    )
    action: str = Field(examples=["job.submit", "token.remove"])
    target: str = Field(examples=[EXAMPLE_ID])
    details: dict[str, Any] = Field(
        examples=[{"input": "s3://data/images", "output": "s3://data/shuffled", "kind": "run"}]
    )


class AuditPage(Model):
    """Some entries, newest first."""

    entries: list[AuditEntry]
    next_cursor: str | None = Field(description="`cursor` of the next page; null at the end.")


class ValidationView(Model):
    """A valid spec, with every default written out."""

    ok: Literal[True] = Field(default=True, examples=[True])
    spec: dict[str, Any] = Field(examples=[EXAMPLE_SPEC])
    warnings: tuple[str, ...] = Field(default=(), examples=[[]])


class HealthView(Model):
    """The answer of a service that runs."""

    status: Literal["ok"] = Field(examples=["ok"])
