"""What passes over the inputs find, for later passes. A later attempt of the job uses the retained
files unchanged: its scratch fits no others."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

from msgspec import Struct, to_builtins

from dsort.data.json_types import checked
from dsort.data.shares import CopyRule
from dsort.errors import damaged
from dsort.job.job import Job
from dsort.storage.small_objects import parse_json
from dsort.transforms.positions import InputPositions

Value = TypeVar("Value")
Stored = TypeVar("Stored")


class Facts(Struct, frozen=True):
    """What the surveys of a job have found. ``copies``: the rule of each input shard; None: each
    record is output once. ``positions``: None if no step needs them. The other fields name files
    that workers read (see ``Stage``), "" if nothing had to be found."""

    positions: InputPositions | None = None
    copies: Sequence[CopyRule] | None = None
    left_out: str = ""
    places: str = ""
    borders: str = ""
    splitters: str = ""
    renames: str = ""
    classes: str = ""


class Fact(Struct, Generic[Value], frozen=True):
    """One file beside the job. ``parse`` receives its bytes and its name for errors, and checks the
    bytes: others may have written them. ``is_shared``: workers read the file, too."""

    name: str
    dump: Callable[[Value], bytes]
    parse: Callable[[bytes, str], Value]
    is_shared: bool = False

    def settle(self, job: Job, find: Callable[[], Value]) -> Value:
        """The value that an earlier attempt found, else the value that ``find`` finds now."""
        data = job.attempt.retained(self.name)
        if data is None:
            return self.keep(job, find())
        value = self.parse(data, f"{self.name} of job {job.job_id}")
        if self.is_shared:
            job.runtime.share(self.name, data)
        return value

    def keep(self, job: Job, value: Value) -> Value:
        """Store ``value`` for later attempts."""
        if self.is_shared:
            job.attempt.retain_on_nodes(self.name, self.dump(value))
        else:
            job.attempt.retain(self.name, self.dump(value))
        return value


def share_kept(job: Job, checks: Mapping[str, Callable[[bytes, str], object]]) -> bool:
    """Share the files of an earlier attempt with all nodes; False if one of them is missing.
    ``checks``: by the name of the file, a function of its bytes and of its description in errors.
    Nothing is shared unless all files pass."""
    kept = {name: job.attempt.retained(name) for name in checks}
    if None in kept.values():
        return False
    for name, data in kept.items():
        checks[name](data or b"", f"{name} of job {job.job_id}")
    for name, data in kept.items():
        job.runtime.share(name, data or b"")
    return True


def parse_kept(data: bytes, what: str, kind: type[Stored]) -> Stored:
    """The JSON of a file that an attempt has kept, as a ``kind``. ``StorageError`` if it is
    damaged: the job cannot be resumed."""
    content = parse_json(data, what)
    with refuse_damage_in(what):
        return checked(content, kind)


def json_fact(
    name: str,
    kind: type[Stored],
    rows: Callable[[Value], Stored],
    of_rows: Callable[[Stored], Value],
) -> Fact[Value]:
    """A fact that is stored as the JSON of a ``kind``. ``of_rows`` raises ``ValueError`` or a
    similar error for rows that do not fit the job."""

    def parse(data: bytes, what: str) -> Value:
        stored = parse_kept(data, what, kind)
        with refuse_damage_in(what):
            return of_rows(stored)

    return Fact(name, lambda value: json.dumps(to_builtins(rows(value))).encode(), parse)


@contextlib.contextmanager
def refuse_damage_in(what: str) -> Iterator[None]:
    """The body parses ``what``, which others may have written; its errors become
    ``StorageError``."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise damaged(what, str(error).partition("\n")[0]) from None
