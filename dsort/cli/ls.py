"""``dsort ls``: what is in a bucket."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Annotated, Any

import click

from dsort.cli import options, output
from dsort.cli.find import bucket_uri, open_existing
from dsort.cli.parameters import Option
from dsort.cli.remote import connected, is_remote

__all__ = ["ls"]

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
