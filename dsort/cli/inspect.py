"""``dsort inspect``: what is in one shard, and what is odd about it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from dsort.cli import options, output
from dsort.cli.find import find_shard, open_argument

if TYPE_CHECKING:
    from dsort.containers.inspect import RecordSummary, ShardSummary

__all__ = ["inspect_shard"]

ROWS_SHOWN = 10


def inspect_shard(
    shard: options.Shard,
    show_all: options.ShowAll = False,
    max_expansion: options.MaxExpansion = 200,
    root: options.Root = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Show a shard's records, keys, extensions, sizes, and what is odd about it."""
    from dsort.shard_contents import inspect_object

    bucket, name = find_shard(shard, root)
    summary = inspect_object(open_argument(bucket, root=root), name, max_expansion=max_expansion)
    if as_json:
        records = (record.to_dict() for record in summary.records)
        output.write_json_list(summary.to_dict(with_records=False), "records", records)
        return
    output.write(_overview(summary))
    shown = summary.records if show_all else summary.records[:ROWS_SHOWN]
    if shown:
        output.write("\n" + _records(shown))
    hidden = len(summary.records) - len(shown)
    if hidden:
        output.write(f"... and {output.count(hidden, 'more record')} (--all lists them)")


def _overview(summary: ShardSummary) -> str:
    record_sizes = ""
    if summary.records:
        smallest, largest, total = summary.record_bytes
        average = output.size(total // len(summary.records))
        record_sizes = f"{output.size(smallest)} to {output.size(largest)}, {average} on average"
    extensions = sorted(summary.extensions.items(), key=lambda item: (-item[1], item[0]))
    pairs = [
        ("shard", output.printable(summary.shard)),
        (
            "size",
            f"{output.size(summary.file_bytes)}, {output.size(summary.payload_bytes)} payload",
        ),
        ("records", output.number(len(summary.records))),
        ("record size", record_sizes),
        ("members", output.number(summary.members)),
        ("extensions", _list(f"{_named(ext)} {many:,}" for ext, many in extensions)),
    ]
    if not summary.oddities:
        pairs.append(("odd", "nothing"))
    for oddity in summary.oddities:
        names = f": {_list(oddity.samples)}" if oddity.samples else ""
        pairs.append(("odd", f"{oddity.count:,} {oddity.text}{names}"))
    return output.fields(pairs)


def _records(records: Iterable[RecordSummary]) -> str:
    rows = [
        (
            output.printable(record.key),
            output.size(record.payload_bytes),
            _list(_named(extension) for extension in record.extensions),
        )
        for record in records
    ]
    return output.table(("KEY", "SIZE", "EXTENSIONS"), rows, right="lrl")


def _named(extension: str) -> str:
    return output.printable(extension) or "(none)"


def _list(texts: Iterable[str]) -> str:
    shown = [output.printable(text) for text in texts]
    return ", ".join(shown[:ROWS_SHOWN]) + (", ..." if len(shown) > ROWS_SHOWN else "")
