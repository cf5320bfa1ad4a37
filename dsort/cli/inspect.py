"""``dsort inspect``: the content of one shard, and its oddities."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from dsort.cli import options, output
from dsort.cli.find import find_shard, open_argument
from dsort.cli.remote import connected, is_remote, shards_there

__all__ = ["inspect_shard"]

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

    bucket, name = find_shard(shard, root)
    summary = inspect_object(open_argument(bucket, root=root), name, max_expansion=max_expansion)
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
