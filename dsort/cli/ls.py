"""``dsort ls``: what is in a bucket."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

import typer

from dsort.cli import options, output
from dsort.cli.find import open_existing

__all__ = ["ls"]

ROWS_AT_ONCE = 1000
NAME_COLUMNS_MIN = 24


def ls(
    bucket: options.BucketUri,
    prefix: Annotated[
        str, typer.Option("--prefix", metavar="TEXT", help="Only names that begin with TEXT.")
    ] = "",
    root: options.Root = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """List a bucket: names and sizes, in byte order."""
    opened = open_existing(bucket, root=root)
    found = opened.list(prefix)
    if as_json:
        objects = [
            {"name": each.name, "size_bytes": each.size_bytes, "mtime_ns": each.mtime_ns}
            for each in found
        ]
        output.write_json({"bucket": opened.uri, "objects": objects})
        return
    width, total, header = NAME_COLUMNS_MIN, 0, True
    while rows := list(islice(found, ROWS_AT_ONCE)):
        names = [output.printable(each.name) for each in rows]
        width = max(width, *(len(name) for name in names))
        if header:
            output.write(f"{'NAME':<{width}}  {'SIZE':>10}")
            header = False
        lines = zip(names, rows, strict=True)
        output.write("\n".join(f"{n:<{width}}  {output.size(r.size_bytes):>10}" for n, r in lines))
        total += len(rows)
    if total == 0:
        output.inform(f"nothing in {opened.uri}" + (f" begins with {prefix!r}" if prefix else ""))
