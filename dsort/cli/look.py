"""``dsort ls``, ``dsort inspect``, ``dsort cat`` and ``dsort urls``: buckets and shards."""

from __future__ import annotations

import os
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Final, Literal
from urllib.parse import quote

import click

from dsort.cli import options, output
from dsort.cli.find import open_existing, open_shard
from dsort.cli.parameters import Argument, Option
from dsort.cli.remote import connected, is_remote, shards_there
from dsort.errors import InputError, SpecError, SpecProblem, StorageError
from dsort.reading.results import bucket_uri

if TYPE_CHECKING:
    from dsort.client import DsortClient

ROWS_AT_ONCE = 1000
NAME_COLUMNS_MIN = 24


def ls(
    context: click.Context,
    bucket: options.BucketUri,
    prefix: Annotated[
        str, Option("--prefix", metavar="TEXT", help="List only names that begin with TEXT.")
    ] = "",
    root: options.Root = None,
    as_json: options.AsJson = False,
    *,
    service: options.ServiceOrHere,
    debug: options.Debug = False,
) -> None:
    """List a bucket: names and sizes, in byte order."""
    if is_remote(context):
        uri = bucket_uri(bucket)
        with connected(context) as client:
            _write(uri, prefix, iter(client.data.objects(uri, prefix=prefix)), as_json=as_json)
        return
    opened = open_existing(bucket, root=root)
    rows = (
        {"name": each.name, "size_bytes": each.size_bytes, "mtime_ns": each.mtime_ns}
        for each in opened.list(prefix)
    )
    _write(opened.uri, prefix, rows, as_json=as_json)


def _write(uri: str, prefix: str, found: Iterator[Mapping[str, Any]], *, as_json: bool) -> None:
    if as_json:
        output.write_json({"bucket": uri, "objects": [*found]})
        return
    width, total, header = NAME_COLUMNS_MIN, 0, True
    while rows := list(islice(found, ROWS_AT_ONCE)):
        names = [output.printable(each["name"]) for each in rows]
        width = max(width, *(len(name) for name in names))
        if header:
            output.write(f"{'NAME':<{width}}  {'SIZE':>10}")
            header = False
        lines = zip(names, rows, strict=True)
        output.write(
            "\n".join(f"{n:<{width}}  {output.size(r['size_bytes']):>10}" for n, r in lines)
        )
        total += len(rows)
    if total == 0:
        output.inform(f"nothing in {uri}" + (f" begins with {prefix!r}" if prefix else ""))


ROWS_SHOWN = 10

Row = tuple[str, int, Sequence[str]]
"""A record: its key, its payload in bytes, and its extensions."""


def inspect_shard(
    context: click.Context,
    shard: options.Shard,
    show_all: options.ShowAll = False,
    max_expansion: options.MaxExpansion = 200,
    root: options.Root = None,
    as_json: options.AsJson = False,
    *,
    service: options.ServiceOrHere,
    debug: options.Debug = False,
) -> None:
    """Show the keys, extensions and sizes of the records of a shard, and the oddities of the
    shard. A service does not report oddities."""
    if is_remote(context):
        _inspect_there(context, shard, show_all=show_all, as_json=as_json)
        return
    from dsort.shard_contents import inspect_object

    summary = inspect_object(*open_shard(shard, root=root), max_expansion=max_expansion)
    document = summary.to_dict(with_records=False)
    if as_json:
        records = (record.to_dict() for record in summary.records)
        output.write_json_list(document, "records", records)
        return
    count = len(summary.records)
    output.write(_overview(document, count, summary.record_bytes if count else None))
    shown = summary.records if show_all else summary.records[:ROWS_SHOWN]
    _write_records(((each.key, each.payload_bytes, each.extensions) for each in shown), count)


def _inspect_there(context: click.Context, shard: str, *, show_all: bool, as_json: bool) -> None:
    bucket, name = shards_there(shard, "SHARD")
    with connected(context) as client:
        records = [*client.data.records(bucket, name)]
        found = client.data.objects(bucket, prefix=name)
        size = next((each["size_bytes"] for each in found if each["name"] == name), None)
    rows: list[Row] = [
        (each["key"], each["size_bytes"], [member["extension"] for member in each["members"]])
        for each in records
    ]
    sizes = [payload_bytes for _, payload_bytes, _ in rows]
    document: dict[str, Any] = {
        "shard": name,
        "file_bytes": size,
        "members": sum(each["members_total"] for each in records),
        "payload_bytes": sum(sizes),
        "records": [
            {"key": key, "extensions": extensions, "payload_bytes": payload_bytes}
            for key, payload_bytes, extensions in rows
        ],
        "extensions": dict(Counter(each for _, _, own in rows for each in own)),
    }
    if as_json:
        output.write_json(document)
        return
    spread = (min(sizes), max(sizes), sum(sizes)) if sizes else None
    output.write(_overview(document, len(rows), spread))
    _write_records(rows if show_all else rows[:ROWS_SHOWN], len(rows))


def _overview(
    document: Mapping[str, Any], records: int, record_bytes: tuple[int, int, int] | None
) -> str:
    """The figures of a shard. ``record_bytes``: the smallest record, the largest, and the sum."""
    record_sizes = ""
    if record_bytes is not None:
        smallest, largest, total = record_bytes
        average = output.size(total // records)
        record_sizes = f"{output.size(smallest)} to {output.size(largest)}, {average} on average"
    extensions = sorted(document["extensions"].items(), key=lambda item: (-item[1], item[0]))
    file_bytes = document["file_bytes"]
    sizes = ["" if file_bytes is None else output.size(file_bytes)]
    sizes.append(f"{output.size(document['payload_bytes'])} payload")
    pairs = [
        ("shard", output.printable(document["shard"])),
        ("size", ", ".join(filter(None, sizes))),
        ("records", output.number(records)),
        ("record size", record_sizes),
        ("members", output.number(document["members"])),
        ("extensions", _list(f"{_named(ext)} {many:,}" for ext, many in extensions)),
    ]
    if document.get("oddities") == []:
        pairs.append(("odd", "nothing"))
    for oddity in document.get("oddities", ()):
        names = f": {_list(oddity['samples'])}" if oddity["samples"] else ""
        pairs.append(("odd", f"{oddity['count']:,} {oddity['text']}{names}"))
    return output.fields(pairs)


def _write_records(shown: Iterable[Row], total: int) -> None:
    rows = [
        (output.printable(key), output.size(size), _list(map(_named, extensions)))
        for key, size, extensions in shown
    ]
    if rows:
        output.write("\n" + output.table(("KEY", "SIZE", "EXTENSIONS"), rows, right="lrl"))
    if hidden := total - len(rows):
        output.write(f"... and {output.count(hidden, 'more record')} (--all lists them)")


def _named(extension: str) -> str:
    return output.printable(extension) or "(none)"


def _list(texts: Iterable[str]) -> str:
    shown = [output.printable(text) for text in texts]
    return ", ".join(shown[:ROWS_SHOWN]) + (", ..." if len(shown) > ROWS_SHOWN else "")


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
            _write_pieces(_pieces_there(client, *shards_there(shard, "SHARD"), key, index), to)
        return
    from dsort.shard_contents import open_contents

    opened, name = open_shard(shard, root=root)
    with open_contents(opened, name, max_expansion=max_expansion) as contents:
        if key is None and index is None:
            pieces: Iterable[Piece] = contents.whole()
        else:
            part = contents.named(key) if key is not None else contents.numbered(index or 0)
            if part.others:
                output.warn(
                    f"{output.count(part.others, 'later record')} of this name: --index selects one"
                )
            pieces = contents.as_tar(part) if written_as == "tar" else contents.payloads(part)
        _write_pieces(pieces, to)


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
    """(the first record that has the key ``key`` or a member of that name, the numbers of the
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


def _write_pieces(pieces: Iterable[Piece], to: str) -> None:
    rest = iter(pieces)
    first = next(rest, b"")  # before the file is opened: most errors come with the first piece
    on_terminal = to == "-" and sys.stdout.isatty()
    if on_terminal and _is_binary(bytes(first[:PEEKED_BYTES])):
        raise InputError(
            "this is binary, and no terminal shows it", hint="write it with -o FILE, or to a pipe"
        )
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
    """Standard output, a device or a pipe, or a file that appears once it is complete."""
    staged: Path | None = None
    try:
        if to == "-":
            yield sys.stdout.buffer
            sys.stdout.buffer.flush()
        elif Path(to).exists() and not Path(to).is_file():
            with Path(to).open("wb") as stream:  # a rename would put a file in place of /dev/null
                yield stream
        else:
            target = os.path.realpath(to)
            staged = Path(f"{target}.part")
            with staged.open("wb") as stream:
                yield stream
            staged.replace(target)
    except BrokenPipeError:
        raise
    except OSError as error:
        if to == "-":
            output.abandon_stdout()
        raise StorageError(f"cannot write {to}: {os.strerror(error.errno or 0)}") from error
    finally:
        if staged is not None:
            staged.unlink(missing_ok=True)


_CURL: Final = 'pipe:curl -fsSL --retry 9 -H "Authorization: Bearer $DSORT_TOKEN" '


def urls(
    context: click.Context,
    template: Annotated[
        str,
        Argument(
            metavar="TEMPLATE",
            help="The shards, as in images/train-{000..099}.tar or s3://data/x-{0..9}.tar.",
        ),
    ],
    transform: Annotated[
        str | None,
        Option(
            "--use",
            metavar="NAME[@N]",
            help="A named transform for the shards. Without @N: the transform's newest version.",
        ),
    ] = None,
    pipe: Annotated[
        bool,
        Option(
            "--pipe",
            help="For webdataset: print pipe: URLs, in which curl sends the token in DSORT_TOKEN.",
        ),
    ] = False,
    braces: Annotated[
        bool,
        Option("--braces", help="Print one URL, with the range that webdataset expands."),
    ] = False,
    as_json: options.AsJson = False,
    *,
    service: options.Service,
    debug: options.Debug = False,
) -> None:
    """Print the URLs of shards at a service with --aistore, one a line. The URLs contain no token.

    \b
    Examples:
      dsort urls "images/train-{000..099}.tar" --use resize
      dsort urls "s3://data/train-{000..099}.tar" --pipe --braces
    """
    bucket, names = shards_there(template, "TEMPLATE")
    if braces and "{" not in names:
        text = "has no range in braces, as {000..099}"
        raise SpecError([SpecProblem("TEMPLATE", text, "leave --braces out")])
    listed = [names] if braces else _expanded(names)
    with connected(context) as client:
        base = f"{client.url}/v1/objects/{quote(bucket, safe='')}"
        query = ""
        if transform is None:
            next(client.transforms.list(), None)  # fails at a service without the routes of objects
        else:
            found = client.transforms.get(transform)
            query = f"?transform={found['name']}@{found['version']}"
    made = [f"{base}/{quote(name, safe='/{}')}{query}" for name in listed]
    if pipe:
        made = [f"{_CURL}{shlex.quote(url)}" for url in made]
    output.write_either(made, "\n".join(made), as_json=as_json)


def _expanded(names: str) -> list[str]:
    from dsort.naming.extensions import DEFAULT_EXTENSION
    from dsort.naming.inputs import expand_inputs

    try:
        return list(expand_inputs(names, DEFAULT_EXTENSION))
    except ValueError as error:
        raise SpecError([SpecProblem("TEMPLATE", str(error))]) from None
