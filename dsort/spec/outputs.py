"""Parts of a spec about its results: several outputs, hooks, programs for shards, amending."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from dsort.spec.fields import (
    ArchiveExtension,
    Bucket,
    CommandName,
    Count,
    OutputFormat,
    ShardCount,
    SizeBytes,
    SplitName,
    WebhookUrl,
    checked_by,
    named,
)
from dsort.spec.part import FieldError, Part, describe, of_option
from dsort.spec.target import REST
from dsort.transforms.payload import parse_seconds


def _condition(value: Any) -> Any:
    if value is True or value == "rest":
        return REST
    if value is not None and not isinstance(value, str):
        raise FieldError(f"must be an expression, or true, not {describe(value)}")
    return value


Condition = Annotated[
    str | None,
    BeforeValidator(_condition),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"const": True}, {"type": "null"}]}),
]


class Output(Part):
    """One of several outputs: a fraction of the records, or the records for which a condition is
    true."""

    name: SplitName = Field(
        description="The name of the output, in reports and as {split} in output_format.",
        examples=["train"],
    )
    fraction: float | None = Field(
        default=None,
        gt=0,
        le=1,
        strict=False,
        description="The share of the records that this output gets, by a hash of split_by. "
        "Either all outputs have fractions, which add up to 1, or all have conditions.",
        examples=[0.98],
    )
    when: Condition = Field(
        default=None,
        description="An expression as in the step filter: a record goes to the first output whose "
        "expression is true of the record. true (or rest): all remaining records. A record that "
        "no output takes fails the job.",
        examples=['ext("cls") < 500'],
    )
    output_bck: Bucket | None = Field(
        default=None,
        description="The bucket of this output, in any store. Default: output_bck of the top "
        "level. The manifest, the journal and all other files of the job stay in that one.",
    )
    output_format: OutputFormat | None = Field(
        default=None, description="As at the top level, which is the default."
    )
    output_extension: ArchiveExtension | None = Field(
        default=None,
        description="The container and codec of this output, as a suffix. Default: those of the "
        "top level. If the containers of outputs differ, records travel as .tar, and are "
        "converted when they are written.",
        examples=[".parquet", ".tar.zst"],
    )
    output_compression_level: int | None = Field(
        default=None, description="As at the top level, for an output_extension of its own."
    )
    output_shard_size: SizeBytes = Field(
        default=None,
        description="As at the top level. An output that sets none of size, records and count of "
        "its shards uses those of the top level.",
    )
    output_shard_size_is: Literal["at_least", "at_most"] | None = Field(
        default=None, description="As at the top level, which is the default."
    )
    output_shard_size_counts: Literal["payload", "file"] | None = Field(
        default=None, description="As at the top level, which is the default."
    )
    output_shard_records: Count | None = Field(default=None, description="As at the top level.")
    output_shard_count: ShardCount = Field(default=None, description="As at the top level.")


_JOB_ID: Final = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}"


class Amend(Part):
    """A finished job of the output bucket whose result this one amends. The new manifest lists the
    whole result. Readers that use manifests see the old result or the new one, and nothing
    between."""

    job: Annotated[str, named(_JOB_ID, "id of a job", "as in 20260131-235959-4f2a9c")] = Field(
        json_schema_extra={"pattern": f"^{_JOB_ID}$"},
        description="The id of the job. No other job may have amended its result.",
        examples=["20260131-235959-4f2a9c"],
    )
    by: Literal["append", "remove"] = Field(
        default="append",
        description="append: the shards of the result stay, and the shards of this job follow "
        "them. remove: shards of the result are written again without some records; `dsort "
        "remove` makes such specs.",
    )


AT_ONCE_MAX: Final = 64
WORDS_MAX: Final = 1000


def _seconds(value: Any) -> Any:
    is_given = isinstance(value, (int, float, str)) and not isinstance(value, bool)
    return parse_seconds(value) if is_given else value


def _check_words(words: tuple[str, ...]) -> None:
    if not words[0] or any("\0" in word for word in words):
        raise FieldError("must begin with a program, and have no zero byte")


Seconds = Annotated[
    float,
    BeforeValidator(of_option(_seconds)),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string"}]}),
]
Words = Annotated[tuple[str, ...], checked_by(_check_words)]


class OnShard(Part):
    """A program that is run for each output shard, once the result is committed."""

    exec: Words = Field(
        strict=False,
        min_length=1,
        max_length=WORDS_MAX,
        description="The program and its arguments. No shell reads them. In arguments, '{shard}' "
        "stands for the name of the shard, '{path}' for its path, or its URI in an object store. "
        "The same values and more are in the variables DSORT_SHARD, DSORT_PATH, DSORT_JOB_ID, "
        "DSORT_RECORDS, DSORT_FILE_BYTES, DSORT_XXH3.",
        examples=[["rsync", "{path}", "backup:/shards/"]],
    )
    timeout: Seconds = Field(
        default=600.0,
        description="The maximum time for one shard: seconds, or '45s', '10m', '1h'. After that, "
        "the program is killed, with all processes that it has started, and has failed.",
        examples=["10m"],
    )
    on_error: Literal["fail", "warn"] = Field(
        default="fail",
        description="What happens if the program fails. fail: it is not started for more shards, "
        "and the command ends with an error; the result stays, and `dsort resume --run-code` "
        "continues. warn: the job logs a warning, and continues with the next shard.",
    )
    at_once: int = Field(
        default=1,
        ge=1,
        le=AT_ONCE_MAX,
        description="The maximum number of programs that run at a time; they begin in the order "
        "of the shards.",
    )
    allowed_by: str = Field(
        default="",
        max_length=128,
        description="Written by a service: the admin who submitted the job. A value in a request "
        "is ignored.",
    )


class Hook(Part):
    """A webhook, a command, or both, which are called at the end of a job."""

    webhook: WebhookUrl | None = Field(
        default=None,
        description="A URL that gets a POST with a JSON document: event, job_id, state, text and "
        "more. Not kept in manifests, and shown without its path: it is often a secret.",
        examples=["https://hooks.example.com/dsort"],
    )
    command: CommandName | None = Field(
        default=None,
        description="The name of a command that is defined under [commands] in the settings of "
        "the user who runs the job. The command gets the same document on its standard input.",
        examples=["page-us"],
    )

    @model_validator(mode="after")
    def _not_empty(self) -> Self:
        if self.webhook is None and self.command is None:
            raise FieldError(
                "has neither a webhook nor a command", "give it a webhook, a command, or both"
            )
        return self

    @property
    def called(self) -> dict[str, str]:
        """The webhook and the command to call, in JSON types: ``{"webhook": ..., "command":
        ...}``."""
        return self.model_dump(exclude_none=True)
