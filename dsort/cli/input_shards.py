"""Which container the shards of an input bucket have, found from their names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import click

from dsort.cli import output
from dsort.cli.find import bucket_uri, open_existing
from dsort.cli.parameters import Option
from dsort.cli.remote import connected, is_remote
from dsort.errors import MissingShardError, SpecError, SpecProblem

__all__ = ["From", "find_inputs", "suffix_of"]

From = Annotated[
    str | None,
    Option(
        "--from",
        metavar="EXT",
        help="The suffix of the container to read.  [default: found from the names in SRC]",
    ),
]


def find_inputs(
    context: click.Context, src: str, source: str | None, root: Path | None
) -> tuple[str, int]:
    """(extension of the shards to read, number of these shards). Shards of one container that
    differ in their codec (``.jsonl``, ``.jsonl.gz``) are one input.

    ``source``: ``--from``. ``MissingShardError`` if there is no shard, ``SpecError`` if there are
    shards of several containers and ``source`` is None."""
    if src == "-":
        return _stream(source), 1
    if is_remote(context):
        with connected(context) as client:
            place = output.printable(src)
            names = (str(row["name"]) for row in client.data.shards(bucket_uri(src)))
            return _choose(place, names, source)
    bucket = open_existing(src, root=root)
    place = output.place(bucket.uri)
    try:
        return _choose(place, (info.name for info in bucket.list("")), source)
    except MissingShardError:
        from dsort.containers.registry import load_installed

        if not load_installed():
            raise
        return _choose(place, (info.name for info in bucket.list("")), source)


def suffix_of(text: str) -> str:
    """``text`` with its dot."""
    return text if text.startswith(".") else f".{text}"


def _stream(source: str | None) -> str:
    if source is None:
        raise SpecError(
            "a shard on standard input has no name that shows its container",
            hint="name the container with --from, as in --from tar",
        )
    return suffix_of(source)


def _choose(place: str, names: Iterable[str], source: str | None) -> tuple[str, int]:
    from dsort.containers.registry import check_supported, is_called
    from dsort.naming.names import archive_extension, is_internal

    counts = Counter(
        extension
        for name in names
        if not is_internal(name) and (extension := archive_extension(name))
    )
    if source is not None:
        wanted = suffix_of(source)
        try:
            check_supported(wanted)
        except ValueError as error:
            raise SpecError([SpecProblem("--from", str(error))]) from None
    elif counts:
        wanted = _only_container(place, counts)
    else:
        raise MissingShardError(
            f"there is no shard in {place}",
            hint="names of shards end in .tar, .jsonl, .parquet and the like; `dsort ls` lists the "
            "bucket, `dsort ingest` makes shards of loose files",
        )
    count = sum(number for each, number in counts.items() if is_called(f"x{each}", wanted))
    if not count:
        raise MissingShardError(f"there is no {wanted} shard in {place}")
    return wanted, count


def _only_container(place: str, counts: Counter[str]) -> str:
    """The extension of all shards, without a codec if their codecs differ."""
    from dsort.containers.registry import is_called, raw_extension

    for wanted in (*counts, *map(raw_extension, counts)):
        if all(is_called(f"x{each}", wanted) for each in counts):
            return wanted
    kinds = ", ".join(f"{count:,} {each}" for each, count in sorted(counts.items()))
    raise SpecError(
        f"{place} has shards of several containers: {kinds}", hint="choose one with --from"
    )
