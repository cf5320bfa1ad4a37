"""``dsort convert``: a job that writes shards of one container as shards of another."""

from __future__ import annotations

from typing import Annotated

import click

from dsort.cli.find import bucket_uri
from dsort.cli.input_shards import From, find_inputs, suffix_of
from dsort.cli.made_spec import MadeJob, run_made_spec
from dsort.cli.output_shards import OutputShards
from dsort.cli.parameters import Argument, Option

__all__ = ["convert"]


def convert(
    context: click.Context,
    src: Annotated[str, Argument(metavar="SRC", help="The bucket to read.")],
    dst: Annotated[str, Argument(metavar="DST", help="The bucket to write.")],
    to: Annotated[
        str,
        Option(
            "--to", metavar="EXT", help="The container to write, as in tar, tfrecord or parquet."
        ),
    ],
    source: From = None,
    key_field: Annotated[
        str,
        Option(
            metavar="FIELD",
            help="The field that holds the keys of records, as key_field of a spec.",
        ),
    ] = "",
    *,
    shards: OutputShards,
    how: MadeJob,
) -> None:
    """Write the shards of a bucket as shards of another container, in the same order.

    Without --shard-size, --shard-records and --shards, DST gets as many shards as SRC has.

    \b
    Examples:
      dsort convert images records --to tfrecord
      dsort convert s3://data/images s3://data/tars --from tfrecord --to tar \\
          --shard-size 1GB --names "train-{n:05d}-of-{total:05d}"
    """
    extension, count = find_inputs(context, src, source, how.root)
    fields = {
        "input_bck": bucket_uri(src),
        "input_extension": extension,
        "output_bck": bucket_uri(dst),
        "output_extension": suffix_of(to),
        "algorithm": {"kind": "none"},
        **({"key_field": key_field} if key_field else {}),
        **shards.fields(dst, count=count),
    }
    run_made_spec(context, fields, how)
