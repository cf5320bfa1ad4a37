"""What passes over the inputs find, for later passes. A later attempt of the job uses the retained
files unchanged: its scratch fits no others."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import xxhash
from msgspec import Struct, field, to_builtins

from dsort.data.json_values import checked
from dsort.data.shares import CopyRule
from dsort.errors import StorageError, damaged
from dsort.job.job import Job
from dsort.storage.small_objects import parse_json
from dsort.transforms.positions import InputPositions

Value = TypeVar("Value")
Stored = TypeVar("Stored")


class Facts(Struct, frozen=True):
    """What the surveys of a job have found. ``copies``: the rule of each input shard; empty: each
    record is output once. The other fields name files
    that workers read (see ``Stage``), "" if nothing had to be found."""

    positions: InputPositions = InputPositions()
    copies: Sequence[CopyRule] = ()
    left_out: str = ""
    places: str = ""
    borders: str = ""
    splitters: str = ""
    renames: str = ""
    classes: str = ""


class _Kept(Struct):
    """``files``: XXH3-128 of the shared files, by name."""

    value: Any
    files: dict[str, str]


class Fact(Struct, Generic[Value], frozen=True):
    """A value that the first attempt finds and later ones use: JSON of a ``kind`` in the file
    ``name``, and shared files. ``dump`` and ``parse`` convert the value; ``parse`` raises
    ``ValueError`` or a similar error for what does not fit the job. ``checks``: for each file that
    the value has, a function of its bytes and of its name for errors. ``may_lack_files``: whether
    some of these files may not be needed."""

    name: str
    kind: Any
    parse: Callable[[Any], Value] = lambda stored: stored
    dump: Callable[[Value], object] = lambda value: value
    checks: Mapping[str, Callable[[bytes, str], object]] = field(default_factory=dict)
    may_lack_files: bool = False

    def settle(self, job: Job, find: Callable[[], Value]) -> Value:
        """The value that an earlier attempt found, else the value that ``find`` finds now."""
        kept = self.before(job)
        return kept[0] if kept else self.keep(job, find())

    def keep(self, job: Job, value: Value) -> Value:
        """Store ``value`` for later attempts, once its files are given to all nodes."""
        shared = job.attempt.digests
        files = {name: shared[name] for name in self.checks if name in shared}
        kept = to_builtins(_Kept(self.dump(value), files))
        job.attempt.retain(self.name, json.dumps(kept).encode())
        return value

    def before(self, job: Job) -> tuple[Value] | tuple[()]:
        """The value that an earlier attempt kept, whose files are given to all nodes; () if there
        is none, or a file is missing. ``StorageError`` if it is damaged: others may have written
        it."""
        data = job.attempt.retained(self.name)
        if data is None:
            return ()
        what = f"{self.name} of job {job.job_id}"
        kept = parse_kept(data, what, _Kept)
        missing = self.checks.keys() - kept.files.keys()
        if not kept.files.keys() <= self.checks.keys() or (missing and not self.may_lack_files):
            raise damaged(what, "it names other files than a survey makes")
        with refuse_damage_in(what):
            value = self.parse(checked(kept.value, self.kind))
        files = {name: job.attempt.retained(name) for name in kept.files}
        if None in files.values():
            return ()
        for name, content in files.items():
            self._check(name, content or b"", kept.files[name], f"{name} of job {job.job_id}")
        for name, content in files.items():
            job.attempt.share(name, content or b"")
        return (value,)

    def _check(self, name: str, data: bytes, digest: str, what: str) -> None:
        """``StorageError`` for a file that is not the one which was kept (what was extracted with
        that file would not fit what is extracted with this one), or that workers could not use."""
        if digest != xxhash.xxh3_128_hexdigest(data):
            raise StorageError(
                f"{what} was changed since the job wrote it",
                hint="the job cannot be resumed; start it again",
            )
        self.checks[name](data, what)


def parse_kept(data: bytes, what: str, kind: type[Stored]) -> Stored:
    """The JSON of a file that an attempt has kept, as a ``kind``. ``StorageError`` if it is
    damaged: the job cannot be resumed."""
    content = parse_json(data, what)
    with refuse_damage_in(what):
        return checked(content, kind)


@contextlib.contextmanager
def refuse_damage_in(what: str) -> Iterator[None]:
    """The body parses ``what``, which others may have written; its errors become
    ``StorageError``."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise damaged(what, str(error).partition("\n")[0]) from None
