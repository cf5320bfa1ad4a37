"""``dsort cat``: the bytes of a shard, of a record, or of a member."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal

import click

from dsort.cli import options, output
from dsort.cli.find import find_shard, open_argument
from dsort.cli.parameters import Argument, Option
from dsort.cli.remote import connected, is_remote, shards_there
from dsort.errors import InputError, SpecError, StorageError

if TYPE_CHECKING:
    from dsort.client import DsortClient

__all__ = ["cat"]

Piece = memoryview | bytes

PEEKED_BYTES = 4096


def cat(
    context: click.Context,
    shard: options.Shard,
    key: Annotated[
        str | None,
        Argument(
            metavar="KEY[.EXT]",
            help="A record's key, or a member's name.",
        ),
    ] = None,
    index: Annotated[
        int | None,
        Option("--index", metavar="N", help="The number of a record, from 0 on.", min=0),
    ] = None,
    written_as: Annotated[
        Literal["raw", "tar"],
        Option(
            "--as",
            help="raw: the bytes of the members, one after the other. tar: a tar of the members.",
        ),
    ] = "raw",
    to: Annotated[
        str,
        Option("--output", "-o", metavar="FILE", help="The file to write; -: standard output."),
    ] = "-",
    max_expansion: options.MaxExpansion = 200,
    root: options.Root = None,
    *,
    service: options.ServiceOrHere,
    debug: options.Debug = False,
) -> None:
    """Write the bytes of a shard, of one of its records, or of a member. A service sends members
    of up to 64 MiB, and whole shards if it has --aistore.

    \b
    Examples:
      dsort cat images/s-00.tar 000017.json
      dsort cat s3://bucket/s-00.tar 000017 --as tar -o one.tar
      dsort cat images/s-00.tar --index 3 | wc -c
    """
    if key is not None and index is not None:
        raise SpecError("KEY and --index both name a record", hint="give one of them")
    if written_as == "tar" and key is None and index is None:
        raise SpecError("--as tar is for a record", hint="give KEY or --index, or leave it out")
    if is_remote(context):
        if written_as == "tar":
            raise SpecError("--as tar: a service sends payloads alone", hint="--as raw")
        with connected(context) as client:
            _write(_pieces_there(client, *shards_there(shard, "SHARD"), key, index), to)
        return
    from dsort.shard_contents import open_contents

    bucket, name = find_shard(shard, root)
    opened = open_argument(bucket, root=root)
    with open_contents(opened, name, max_expansion=max_expansion) as contents:
        if key is None and index is None:
            pieces: Iterable[Piece] = contents.whole()
        else:
            part = contents.named(key) if key is not None else contents.numbered(index or 0)
            if part.others:
                output.warn(f"{output.count(part.others, 'later record')} of it: --index")
            pieces = contents.as_tar(part) if written_as == "tar" else contents.payloads(part)
        _write(pieces, to)


def _pieces_there(
    client: DsortClient, bucket: str, name: str, key: str | None, index: int | None
) -> Iterator[bytes]:
    """The bytes of a shard at a service, of the record ``key`` or ``index``, or of the member
    ``key``."""
    if key is None and index is None:
        yield from client.data.whole(bucket, name)
        return
    if index is not None:
        found = next(client.data.records(bucket, name, first=index), None)
        if found is None:
            raise InputError(f"{name} has no record {index}")
        members: Iterable[int] = range(found["members_total"])
    else:
        found, members = _named_there(client, bucket, name, key or "")
    for member in members:
        yield client.data.read(bucket, name, found["number"], member)


def _named_there(
    client: DsortClient, bucket: str, name: str, key: str
) -> tuple[Mapping[str, Any], Iterable[int]]:
    """(the first record whose key is ``key`` or that has a member of that name, the numbers of the
    members to write)."""
    for record in client.data.records(bucket, name, text=key):
        if record["key"] == key:
            return record, range(record["members_total"])
    directory, slash, base = key.rpartition("/")
    for record in client.data.records(bucket, name, text=directory + slash + base.split(".")[0]):
        for number, member in enumerate(record["members"]):
            if member["name"] == key:
                return record, [number]
    raise InputError(f"{name} has no record and no member {key!r}", hint="dsort inspect lists them")


def _write(pieces: Iterable[Piece], to: str) -> None:
    rest = iter(pieces)
    first = next(rest, b"")
    on_terminal = to == "-" and sys.stdout.isatty()
    if on_terminal and _is_binary(bytes(first[:PEEKED_BYTES])):
        raise InputError("this is binary, and no terminal shows it", hint="-o FILE, or a pipe")
    with _opened(to) as stream:
        last = bytes(first[-1:])
        stream.write(first)
        for piece in rest:
            last = bytes(piece[-1:]) or last
            stream.write(piece)
        if on_terminal and last != b"\n":
            stream.write(b"\n")  # else the prompt would be on the same line


def _is_binary(data: bytes) -> bool:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(data) - 3:  # else the character continues in the next piece
            return True
        text = data[: error.start].decode("utf-8")
    return any(not each.isprintable() and each not in "\t\r\n" for each in text)


@contextmanager
def _opened(to: str) -> Iterator[IO[bytes]]:
    """Standard output, or a file that appears once it is complete."""
    path = Path(f"{to}.part")
    try:
        if to == "-":
            yield sys.stdout.buffer
            sys.stdout.buffer.flush()
            return
        with path.open("wb") as stream:
            yield stream
        path.replace(to)
    except BrokenPipeError:
        raise
    except OSError as error:
        if to == "-":
            output.abandon_stdout()
        raise StorageError(f"cannot write {to}: {os.strerror(error.errno or 0)}") from error
    finally:
        if to != "-":
            path.unlink(missing_ok=True)
