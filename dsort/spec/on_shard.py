"""The part of a spec about the program that is run for each output shard once the result is
committed."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from dsort.order.base import OptionError
from dsort.spec.algorithms import Part
from dsort.spec.hints import FieldError
from dsort.transforms.payload import parse_seconds

__all__ = ["AT_ONCE_MAX", "OnShard"]

AT_ONCE_MAX: Final = 64
WORDS_MAX: Final = 1000


def _seconds(value: Any) -> Any:
    if not isinstance(value, (int, float, str)) or isinstance(value, bool):
        return value
    try:
        return parse_seconds(value)
    except OptionError as error:
        raise FieldError(str(error), error.hint) from None


def _are_words(words: tuple[str, ...]) -> tuple[str, ...]:
    if not words[0] or any("\0" in word for word in words):
        raise FieldError("must begin with a program, and have no zero byte")
    return words


Seconds = Annotated[
    float,
    BeforeValidator(_seconds),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string"}]}),
]
Words = Annotated[tuple[str, ...], AfterValidator(_are_words)]


class OnShard(Part):
    """A program that is run for each output shard, once the result is committed."""

    exec: Words = Field(
        strict=False,
        min_length=1,
        max_length=WORDS_MAX,
        description="The program and its arguments. No shell reads them. '{shard}' in one is the "
        "name of the shard, '{path}' its path, or its URI in an object store. The same and more is "
        "in DSORT_SHARD, DSORT_PATH, DSORT_JOB_ID, DSORT_RECORDS, DSORT_FILE_BYTES, DSORT_XXH3.",
        examples=[["rsync", "{path}", "backup:/shards/"]],
    )
    timeout: Seconds = Field(
        default=600.0,
        description="How long it may take for one shard: seconds, or '45s', '10m', '1h'. Then it "
        "is killed, with all that it has started, and has failed.",
        examples=["10m"],
    )
    on_error: Literal["fail", "warn"] = Field(
        default="fail",
        description="What comes of it if it fails. fail: no more shards are begun and the command "
        "ends with an error; the result stays, and `dsort resume --run-code` goes on. warn: a "
        "warning, and the next shard.",
    )
    at_once: int = Field(
        default=1, ge=1, le=AT_ONCE_MAX, description="So many shards at a time, in their order."
    )
    allowed_by: str = Field(
        default="",
        max_length=128,
        description="Written by a service: the admin who submitted the job. What a request says "
        "here is ignored.",
    )
