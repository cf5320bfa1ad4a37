"""What passes over the inputs find, for the passes after them. A later attempt of the job uses the
files that were kept as they are: its scratch fits no others."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from dsort.data.shares import CopyRule
from dsort.errors import damaged
from dsort.job.job import Job
from dsort.storage.small_objects import parse_json
from dsort.transforms.positions import InputPositions

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Facts:
    """What the surveys of a job have found. ``copies``: the rule of each input shard; None: each
    record comes out once. ``positions``: None where no step asks for them. The others name files
    that workers read (see ``Stage``), "" where nothing had to be found."""

    positions: InputPositions | None = None
    copies: Sequence[CopyRule] | None = None
    left_out: str = ""
    places: str = ""
    borders: str = ""
    splitters: str = ""
    renames: str = ""
    classes: str = ""


@dataclass(frozen=True, slots=True)
class Fact(Generic[Value]):
    """One file beside the job. ``parse`` gets its bytes and what to call it in errors, and checks
    both: others may have written it. ``is_shared``: workers read the file, too."""

    name: str
    dump: Callable[[Value], bytes]
    parse: Callable[[bytes, str], Value]
    is_shared: bool = False

    def settle(self, job: Job, find: Callable[[], Value]) -> Value:
        """What an earlier attempt has found, else what ``find`` finds now."""
        data = job.retained(self.name)
        if data is None:
            return self.keep(job, find())
        value = self.parse(data, f"{self.name} of job {job.job_id}")
        if self.is_shared:
            job.runtime.share(self.name, data)
        return value

    def keep(self, job: Job, value: Value) -> Value:
        """Keep ``value`` for later attempts."""
        if self.is_shared:
            job.retain_on_nodes(self.name, self.dump(value))
        else:
            job.retain(self.name, self.dump(value))
        return value


def json_fact(
    name: str, rows: Callable[[Value], Any], of_rows: Callable[[Any], Value]
) -> Fact[Value]:
    """One that is kept as JSON. ``of_rows`` raises ``ValueError`` and the like for what is none."""

    def parse(data: bytes, what: str) -> Value:
        content = parse_json(data, what)
        with refuse_damage_in(what):
            return of_rows(content)

    return Fact(name, lambda value: json.dumps(rows(value)).encode(), parse)


@contextlib.contextmanager
def refuse_damage_in(what: str) -> Iterator[None]:
    """The body takes ``what`` apart, which others may have written; ``StorageError`` if it is not
    as dsort writes it."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise damaged(what, str(error).partition("\n")[0]) from None
