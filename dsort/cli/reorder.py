"""``dsort shuffle``, ``dsort sort``, ``dsort reshard`` and ``dsort convert``: one job each, from
options; and the verb that makes the shards of a view."""

from __future__ import annotations

from typing import Annotated, Any

import click
from msgspec import Struct

from dsort.cli import options
from dsort.cli.find import data_root, find_result, user_settings
from dsort.cli.made_spec import (
    From,
    MadeJob,
    OutputShards,
    Seed,
    find_inputs,
    run_made_spec,
    shuffle_with,
    suffix_of,
)
from dsort.cli.parameters import Argument, Option
from dsort.cli.progress import make_reporter
from dsort.cli.remote import write_report
from dsort.cli.run import stoppable
from dsort.errors import SpecError, SpecProblem
from dsort.options import RunOptions
from dsort.reading.results import bucket_uri

Source = Annotated[str, Argument(metavar="SRC", help="The bucket to read.")]
Destination = Annotated[str, Argument(metavar="DST", help="The bucket to write.")]


class Records(Struct, frozen=True, kw_only=True):
    """The options that select records, and the containers that hold them."""

    filter: Annotated[
        str | None,
        Option(
            metavar="EXPR",
            help="Keep the records for which this expression is true, as in 'has(\"jpg\")'.",
        ),
    ] = None
    dedup: Annotated[
        str | None,
        Option(
            metavar="key|content|FIELD",
            help="Keep one of several records with equal keys, with equal content, or with equal "
            "values of a field (json.text).",
        ),
    ] = None
    source: From = None
    to: Annotated[
        str | None,
        Option(
            "--to",
            metavar="EXT",
            help="The suffix of the container to write.  [default: as in SRC]",
        ),
    ] = None

    view: Annotated[
        bool,
        Option(
            "--view",
            help="Write a view: files that list which bytes of SRC each shard has, in place of "
            "shards.",
        ),
    ] = False

    def fields(self) -> dict[str, Any]:
        """The fields of a spec."""
        fields: dict[str, Any] = {"output": "view"} if self.view else {}
        if self.to is not None:
            fields["output_extension"] = suffix_of(self.to)
        if self.filter is not None:
            fields["transform"] = {"steps": [{"filter": self.filter}]}
        if self.dedup is not None:
            is_field = self.dedup not in ("key", "content")
            fields["deduplicate"] = {"by": {"field": self.dedup} if is_field else self.dedup}
        return fields


def shuffle(
    context: click.Context,
    src: Source,
    dst: Destination,
    seed: Seed = None,
    *,
    shards: OutputShards,
    records: Records,
    how: MadeJob,
) -> None:
    """Shuffle all records of a bucket into new shards.

    \b
    Examples:
      dsort shuffle images shuffled
      dsort shuffle s3://raw/images s3://train/images --shard-size 1GB --seed 42
      dsort shuffle images splits --split train=0.9,val=0.1
      dsort shuffle images tonight --view
    """
    algorithm = shuffle_with(seed)
    _reorder(context, src, dst, algorithm, shards, records, how, random_seed=seed is None)


def sort(
    context: click.Context,
    src: Source,
    dst: Destination,
    by: Annotated[
        list[str] | None,
        Option(
            "--by",
            metavar="KEY",
            help="The sort key: key (the record key), a field (json.score), an expression "
            "('size(json.text)'), member:.EXT:TYPE (the content of a member), "
            "member:.EXT:FIELD:TYPE (a field of a JSON member), or algorithm:NAME (an algorithm of "
            "specs, such as one of an installed package). TYPE is int, float or string. The option "
            "may be repeated: the first KEY counts most.  [default: key]",
        ),
    ] = None,
    reverse: Annotated[
        bool, Option("--reverse", help="Write the record with the largest sort key first.")
    ] = False,
    *,
    shards: OutputShards,
    records: Records,
    how: MadeJob,
) -> None:
    """Sort all records of a bucket into new shards.

    \b
    Examples:
      dsort sort images sorted
      dsort sort images by-class --by member:.cls:int
      dsort sort images by-score --by json.meta.score --reverse
    """
    keys = [_sort_key(text, reverse=reverse) for text in by or ["key"]]
    algorithm = keys[0] if len(keys) == 1 else {"kind": "keys", "keys": keys}
    _reorder(context, src, dst, algorithm, shards, records, how)


def reshard(
    context: click.Context,
    src: Source,
    dst: Destination,
    *,
    shards: OutputShards,
    records: Records,
    how: MadeJob,
) -> None:
    """Write the records of a bucket into shards of another size, in the same order.

    \b
    Examples:
      dsort reshard images larger --shard-size 1GB
      dsort reshard images eight --shards 8
    """
    _reorder(context, src, dst, {"kind": "none"}, shards, records, how)


def _reorder(
    context: click.Context,
    src: str,
    dst: str,
    algorithm: dict[str, Any],
    shards: OutputShards,
    records: Records,
    how: MadeJob,
    *,
    random_seed: bool = False,
) -> None:
    extension, _ = find_inputs(context, src, records.source, how.root)
    fields = {
        "input_bck": bucket_uri(src),
        "input_extension": extension,
        "output_bck": bucket_uri(dst),
        **shards.fields(dst),
        "algorithm": algorithm,
        **records.fields(),
    }
    run_made_spec(context, fields, how, random_seed=random_seed)


def _sort_key(text: str, *, reverse: bool) -> dict[str, Any]:
    """The algorithm of a spec for a ``--by``."""
    order = {"decreasing": True} if reverse else {}
    what, *rest = text.split(":")
    if what == "key" and not rest:
        return {"kind": "alphanumeric", **order}
    if what == "algorithm" and len(rest) == 1:
        return {"kind": rest[0], **order}
    if what == "member" and len(rest) in (2, 3):
        extension, *field, content_type = rest
        named = {"json_field": field[0]} if field else {}
        return {
            "kind": "content",
            "extension": suffix_of(extension),
            "content_key_type": content_type,
            **named,
            **order,
        }
    if what == "member":
        hint = "member:.cls:int, or member:.json:meta.score:float"
        raise SpecError([SpecProblem("--by", f"{text!r} is no sort key", hint)])
    return {"kind": "value", "value": text, **order}


def convert(
    context: click.Context,
    src: Source,
    dst: Destination,
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


def materialize(
    view: Annotated[
        str,
        Argument(
            metavar="VIEW",
            help="The view: its bucket, the id of its job, or the path of its manifest.",
        ),
    ],
    dst: Destination,
    bucket: options.JobBucket = None,
    root: options.Root = None,
    *,
    progress: options.ProgressOption = "auto",
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Write the shards of a view, byte for byte as its job would have written them.

    The command reads each range where the view points to, and refuses inputs that have changed.
    No object of DST is replaced.

    \b
    Examples:
      dsort materialize tonight shards
      dsort materialize s3://data/.dsort/20260131-235959-4f2a9c s3://shards
    """
    from dsort import api

    found = find_result(view, bucket=bucket, root=root)
    settings = user_settings()
    how = RunOptions(
        root=data_root(root, settings),
        bandwidth_max_bytes_per_s=settings.bandwidth_max_bytes_per_s,
        settings=settings,
    )
    with make_reporter(progress) as reporter, stoppable(reporter) as stop:
        report = api.materialize(
            found.read(),
            bucket_uri(dst),
            place=found.bucket.uri if found.in_place else None,
            options=how,
            on_event=reporter,
            stop=stop,
        )
    write_report(report, as_json=as_json)
