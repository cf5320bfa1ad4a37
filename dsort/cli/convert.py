"""``dsort convert``: a job that writes shards of one container as shards of another."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from dsort.cli import options, output
from dsort.cli.find import open_existing
from dsort.cli.made_spec import run_made_spec
from dsort.cli.run import run_options
from dsort.errors import MissingShardError, SpecError, SpecProblem

__all__ = ["convert", "inputs_of", "suffix_of"]

NAMES = "shard-{n:05d}-of-{total:05d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputShards:
    """What output shards are called, and how large they are."""

    names: Annotated[
        str, typer.Option("--names", metavar="TEMPLATE", help="What output shards are called.")
    ] = NAMES
    shard_size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Payload of an output shard: 100MB.")
    ] = None
    shard_records: Annotated[
        int | None, typer.Option(metavar="N", help="Records of an output shard.", min=1)
    ] = None
    shard_count: Annotated[
        int | None,
        typer.Option(metavar="N", help="Output shards. Default: as many as input shards.", min=1),
    ] = None

    def fields(self, count: int, dst: str) -> dict[str, object]:
        """The fields of a spec; as many shards as ``count``, where nothing else is said. A stream
        is one shard without a name: what is said of others is warned about."""
        sizes = {
            "output_shard_size": self.shard_size,
            "output_shard_records": self.shard_records,
            "output_shard_count": self.shard_count,
        }
        given = {field: value for field, value in sizes.items() if value is not None}
        if dst == "-":
            return {**given, **({} if self.names == NAMES else {"output_format": self.names})}
        return {"output_format": self.names, **(given or {"output_shard_count": count})}


@options.grouped
def convert(
    src: Annotated[str, typer.Argument(metavar="SRC", help="The bucket to read.")],
    dst: Annotated[str, typer.Argument(metavar="DST", help="The bucket to write.")],
    to: Annotated[
        str, typer.Option("--to", metavar="EXT", help="What to write, as a suffix: tar, tfrecord.")
    ],
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="EXT", help="What to read. Default: what is in SRC."),
    ] = None,
    key_field: Annotated[
        str, typer.Option(metavar="FIELD", help="Where keys stand: key_field of a spec.")
    ] = "",
    root: options.Root = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Plan, but write nothing.")] = False,
    overwrite: options.Overwrite = False,
    *,
    shards: OutputShards,
    run: options.RunArguments,
    progress: options.ProgressOption = "auto",
    as_json: options.AsJson = False,
    verbose: options.Verbose = False,
    debug: options.Debug = False,
) -> None:
    """Write the shards of a bucket as shards of another container, in the same order.

    \b
    Examples:
      dsort convert images records --to tfrecord
      dsort convert s3://data/images s3://data/tars --from tfrecord --to tar \\
          --shard-size 1GB --names "train-{n:05d}-of-{total:05d}"
    """
    extension, count = _stream_of(source) if src == "-" else inputs_of(src, source, root)
    fields = {
        "input_bck": src,
        "input_extension": extension,
        "output_extension": suffix_of(to),
        "algorithm": {"kind": "none"},
        "key_field": key_field,
        **shards.fields(count, dst),
    }
    as_given = run_options(run, root=root, overwrite=overwrite)
    run_made_spec(
        fields,
        src,
        dst,
        as_given,
        overwrite=overwrite,
        verbose=verbose,
        dry_run=dry_run,
        progress=progress,
        as_json=as_json,
    )


def _stream_of(source: str | None) -> tuple[str, int]:
    """What is on standard input: one shard, of which nothing says the container but ``source``."""
    if source is None:
        raise SpecError(
            "what is on standard input has no name that says its container",
            hint="say it with --from: `dsort convert - DST --from tar --to zip`",
        )
    return suffix_of(source), 1


def inputs_of(src: str, source: str | None, root: Path | None) -> tuple[str, int]:
    """(extension of the shards to read, how many there are)."""
    from dsort.containers.registry import check_supported
    from dsort.naming.names import archive_extension, is_internal

    bucket = open_existing(src, root=root)
    counts = Counter(
        extension
        for info in bucket.list("")
        if not is_internal(info.name) and (extension := archive_extension(info.name))
    )
    place = output.place(bucket.uri)
    if source is not None:
        wanted = suffix_of(source)
    elif len(counts) == 1:
        (wanted,) = counts
    elif counts:
        kinds = ", ".join(f"{count:,} {each}" for each, count in sorted(counts.items()))
        raise SpecError(f"{place} has shards of several kinds: {kinds}", hint="choose with --from")
    else:
        raise MissingShardError(f"there is no shard in {place}")
    try:
        check_supported(wanted)
    except ValueError as error:
        raise SpecError([SpecProblem("--from", str(error))]) from None
    if not counts[wanted]:
        raise MissingShardError(f"there is no {wanted} shard in {place}")
    return wanted, counts[wanted]


def suffix_of(text: str) -> str:
    return text if text.startswith(".") else f".{text}"
