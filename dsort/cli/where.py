"""``dsort where``: where a record of a result comes from, and where it is now."""

from __future__ import annotations

from typing import Annotated, Any

import click

from dsort.cli import options, output
from dsort.cli.find import find_job
from dsort.cli.parameters import Argument
from dsort.errors import InputError

__all__ = ["where"]


def where(
    job: options.JobOrManifest,
    keys: Annotated[
        list[str],
        Argument(metavar="KEY...", help="The keys of the records."),
    ],
    bucket: options.JobBucket = None,
    root: options.Root = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Show which bytes of an input shard held a record, and which bytes of an output shard hold the
    record now.

    The job must have a lineage: `lineage: parquet` in the spec of the job.

    \b
    Examples:
      dsort where shuffled 000017
      dsort where s3://bucket/shuffled 000017 000042 --json
    """
    from dsort.job.lineage import find_in_lineage
    from dsort.results.manifest import parse_manifest

    found = find_job(job, bucket=bucket, root=root, finished=True)
    if not found.finished:
        raise InputError(f"job {found.job_id} has no result")
    manifest = parse_manifest(found.read())
    lineages, removed = manifest.lineages, "`dsort remove` deletes the lineage of a result"
    if not lineages:
        wanted = "a job with `lineage: parquet` in its spec records where its records come from"
        raise InputError(
            f"job {found.job_id} has no lineage", hint=removed if manifest.has_removed else wanted
        )
    rows = [row for each in lineages for row in find_in_lineage(found.bucket, each.name, keys)]
    known = {row["key"] for row in rows}
    missing = [key for key in keys if key not in known]
    if as_json:
        output.write_json({"job_id": found.job_id, "records": rows, "missing": missing})
        raise click.exceptions.Exit(InputError.exit_code if missing else 0)
    if rows:
        output.write("\n\n".join(_shown(row) for row in rows))
    if missing:
        text = ", ".join(map(output.printable, missing))
        raise InputError(
            f"the result of job {found.job_id} has no record {text}",
            hint=removed
            if manifest.has_removed
            else "dsort show lists what the job left out, and what it renamed",
        )


def _shown(row: dict[str, Any]) -> str:
    return output.fields(
        [
            ("key", output.printable(row["key"])),
            ("was in", _place(row["input_shard"], row["input_offset"], row["input_bytes"])),
            ("is in", _place(row["output_shard"], row["output_offset"], row["output_bytes"])),
            ("xxh3", output.printable(row["xxh3"])),
        ]
    )


def _place(shard: str, start: int | None, size_bytes: int) -> str:
    where = "" if start is None else f" from byte {start:,} on"
    return f"{output.printable(shard)}, {size_bytes:,} bytes{where}"
