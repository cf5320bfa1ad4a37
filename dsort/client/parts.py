"""The parts of a client: ``client.schedules``, ``.transforms``, ``.tokens`` and ``.data``."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import httpx

from dsort.client import calls
from dsort.client.calls import Row
from dsort.client.transport import Transport
from dsort.client.values import Schedule, ScheduleRun

__all__ = ["RUNS_MAX", "Data", "Schedules", "Tokens", "Transforms"]

RUNS_MAX = 500


class Schedules:
    """``client.schedules``: jobs that a service submits at certain times."""

    def __init__(self, transport: Transport) -> None:
        self._call = transport.call

    def add(self, name: str, definition: Mapping[str, Any]) -> Schedule:
        """Make a schedule: ``definition`` has the spec, the due times, and further settings."""
        return self._call(calls.add_schedule(name, definition))

    def replace(self, name: str, definition: Mapping[str, Any]) -> Schedule:
        """Replace the definition of the schedule."""
        return self._call(calls.replace_schedule(name, definition))

    def list(self) -> builtins.list[Schedule]:
        """All schedules that the token may see."""
        return self._call(calls.list_schedules())

    def get(self, name: str) -> Schedule:
        """One schedule, with the next times at which it is due."""
        return self._call(calls.get_schedule(name))

    def remove(self, name: str) -> None:
        """Remove a schedule. Its jobs and their results stay."""
        self._call(calls.remove_schedule(name))

    def pause(self, name: str) -> Schedule:
        """Pause a schedule: it is not due until it is resumed."""
        return self._call(calls.pause_schedule(name))

    def resume(self, name: str) -> Schedule:
        """Resume a paused schedule."""
        return self._call(calls.resume_schedule(name))

    def run_now(self, name: str) -> ScheduleRun:
        """Make a job of the schedule now, besides its due times; the run names the job, or is
        waiting for an earlier one. ``ConflictError``: an earlier job has not ended, and the
        schedule's overlap is ``skip``."""
        return self._call(calls.run_schedule_now(name))

    def runs(self, name: str, *, limit: int = RUNS_MAX) -> tuple[ScheduleRun, ...]:
        """The runs of a schedule, the newest first."""
        return self._call(calls.runs_of_schedule(name, limit))


class Transforms:
    """``client.transforms``: transforms that jobs of a service may use by name. A version is a
    mapping with ``name``, ``version``, ``digest``, ``created_at``, ``created_by``, ``kinds``,
    ``runs_code``; the answers of ``get`` also have ``transform`` and ``versions``."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._call = transport.call

    def put(self, name: str, transform: Mapping[str, Any]) -> tuple[Row, bool]:
        """(the newest version of ``name``, which has these steps; whether it is new). For admins.
        ``transform``: as in a spec."""
        return self._call(calls.put_transform(name, transform))

    def get(self, name: str) -> Row:
        """The newest version of ``name``, or version 3 for ``name@3``."""
        return self._call(calls.get_transform(name))

    def list(self) -> Iterator[Row]:
        """All versions, the newest first, requested page by page."""
        return self._transport.pages(calls.list_transforms())

    def remove(self, name: str) -> None:
        """Remove a transform, or only version 3 for ``name@3``. For admins. Jobs that began with it
        continue."""
        self._call(calls.remove_transform(name))


class Tokens:
    """``client.tokens``: for admins. A token is a mapping with the fields of the REST reference,
    without its secret."""

    def __init__(self, transport: Transport) -> None:
        self._call = transport.call

    def add(
        self,
        name: str,
        role: str,
        *,
        input_buckets: Sequence[str] = ("*",),
        output_buckets: Sequence[str] = ("*",),
        expires_in_s: float | None = None,
    ) -> Row:
        """Make a token. Only this answer has its text, as ``token``."""
        return self._call(
            calls.add_token(
                name,
                role,
                input_buckets=input_buckets,
                output_buckets=output_buckets,
                expires_in_s=expires_in_s,
            )
        )

    def list(self) -> builtins.list[Row]:
        """All tokens, expired ones too."""
        return self._call(calls.list_tokens())

    def remove(self, name: str) -> None:
        """Remove a token. The jobs of its holder stay."""
        self._call(calls.remove_token(name))


class Data:
    """``client.data``: shards, their records, and the members of records, as on the service's page.
    Rows are mappings with the fields of the REST reference. ``bucket``: as in a spec; ``shard``:
    its name in the bucket; ``number``: of a record in its shard, from 0 on."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._call = transport.call

    def shards(self, bucket: str, *, text: str = "") -> Iterator[Row]:
        """Shards with ``name``, ``size_bytes`` and ``records`` (None: not known), in order of their
        names, requested page by page. ``text``: only names that contain it."""
        return self._transport.pages(calls.list_shards(bucket, text))

    def objects(self, bucket: str, *, prefix: str = "") -> Iterator[Row]:
        """All objects, shards or not, with ``name`` and ``size_bytes``, in byte order of their
        names, requested page by page. ``prefix``: only names that begin with it."""
        return self._transport.pages(calls.list_objects(bucket, prefix))

    def whole(self, bucket: str, name: str) -> Iterator[bytes]:
        """The bytes of an object, in pieces, from a service with ``--aistore``."""
        path = calls.data_path("objects", bucket, name)
        try:
            with self._transport.stream(path, headers={"Accept": "*/*"}) as answer:
                if not answer.is_success:
                    raise self._transport.error(answer)
                yield from answer.iter_bytes()
        except httpx.TransportError as error:
            raise self._transport.failure(error) from error

    def garbage(self, bucket: str, *, older_than_s: float = 86_400.0) -> Sequence[Row]:
        """The files that interrupted jobs left in a bucket. For admins."""
        return self._call(calls.find_garbage(bucket, older_than_s))

    def records(self, bucket: str, shard: str, *, first: int = 0, text: str = "") -> Iterator[Row]:
        """Records with ``number``, ``key``, ``members`` and ``size_bytes``, from number ``first``
        on, page by page. ``text``: only keys that contain it."""
        return self._transport.pages(calls.list_records(bucket, shard, first, text))

    def show(self, bucket: str, shard: str, *numbers: int) -> Sequence[Row]:
        """These records, 20 at most, with previews of their members: small pictures whole, the
        beginning of texts and of everything else."""
        return self._call(calls.show_records(bucket, shard, numbers))

    def sample(self, bucket: str, shard: str, count: int, *, seed: str = "") -> Sequence[Row]:
        """``count`` records at random, 20 at most, in the form of ``show``."""
        return self._call(calls.sample_records(bucket, shard, count, seed))

    def changed(self, bucket: str, shard: str, number: int, transform: str) -> Row:
        """A record ``before``, and what the named transform makes of it: ``after``, a list. Nothing
        is written. For submitters."""
        return self._call(calls.changed_record(bucket, shard, number, transform))

    def read(self, bucket: str, shard: str, number: int, member: int = 0) -> bytes:
        """The bytes of one member of a record, by its number in the record; 64 MiB at most."""
        return self._call(calls.read_member(bucket, shard, number, member))
