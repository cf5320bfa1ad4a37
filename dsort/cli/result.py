"""``dsort verify``, ``dsort where`` and ``dsort view export``: a result is compared with its
inputs, a record is found in its lineage, and other programs get the ranges of a view."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Annotated, Any, Final

import click

from dsort.cli import exits, options, output, summary
from dsort.cli.find import data_root, find_result, user_settings
from dsort.cli.parameters import Argument, Option
from dsort.cli.progress import make_reporter
from dsort.cli.run import stoppable
from dsort.errors import InputError, SpecError, SpecProblem, VerifyError
from dsort.options import RunOptions


def verify(
    job: options.JobOrManifest,
    bucket: options.JobBucket = None,
    root: options.Root = None,
    max_expansion: options.VerifyMaxExpansion = None,
    memory_max: options.VerifyMemoryMax = None,
    run_code: Annotated[
        bool,
        Option(
            "--run-code",
            help="Run the code that is named in the steps of the job's spec once more, and "
            "compare the records that the code makes. The spec comes from the manifest: use "
            "--run-code only for a job of your own.",
        ),
    ] = False,
    sample: options.VerifySample = None,
    seed: options.SampleSeed = None,
    progress: options.ProgressOption = "auto",
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Read the inputs and the outputs of a job again, and compare the records.

    The command checks that every record is there once, that bytes and checksums are equal, and that
    the order and the duplicates are as the spec says. With --sample it reads a random part of the
    output shards, and no input.
    """
    from dsort import api

    if seed is not None and sample is None:
        raise SpecError([SpecProblem("--seed", "works only with --sample")])
    part = None if sample is None else options.sample_part(sample)
    found = find_result(job, bucket=bucket, root=root)
    settings = user_settings()
    memory_max_bytes = (
        None if memory_max is None else options.size_bytes(memory_max, "--max-memory", least=1)
    )
    run = RunOptions(
        root=data_root(root, settings),
        memory_max_bytes=memory_max_bytes or settings.memory_max_bytes,
        settings=settings,
    )
    with make_reporter(progress) as reporter, stoppable(reporter) as stop:
        report = api.verify(
            found.read(),
            output_uri=found.bucket.uri if found.in_place else None,
            max_expansion=max_expansion,
            run_code=run_code,
            sample=part,
            seed=seed or "",
            options=run,
            on_event=reporter,
            stop=stop,
        )
    output.write_either(report.to_dict(), summary.verification(report), as_json=as_json)
    if not report.ok:
        differences = output.count(report.problem_count, "difference")
        error = VerifyError(f"the result of job {report.job_id} has {differences}")
        raise click.exceptions.Exit(exits.report_error(error, as_json=False, debug=debug))


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

    found = find_result(job, bucket=bucket, root=root)
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


LINES_AT_ONCE: Final = 100
BATCH_DEFAULT: Final = 256
BATCH_MAX: Final = 100_000


def export(
    view: Annotated[
        str,
        Argument(
            metavar="VIEW",
            help="The view: its bucket, the id of its job, or the path of its manifest.",
        ),
    ],
    bucket: options.JobBucket = None,
    root: options.Root = None,
    jsonl: Annotated[
        bool,
        Option("--jsonl", help="A JSON object for each record: position, key, ranges of inputs."),
    ] = False,
    getbatch: Annotated[
        bool,
        Option(
            "--getbatch",
            help="A request of AIStore's GetBatch on each line. All inputs must be in AIStore.",
        ),
    ] = False,
    batch: Annotated[
        int | None,
        Option(
            "--batch",
            metavar="RECORDS",
            min=1,
            max=BATCH_MAX,
            help=f"The number of records in a request of GetBatch.  [default: {BATCH_DEFAULT}]",
        ),
    ] = None,
    debug: options.Debug = False,
) -> None:
    """List the records of a view, in its order, each with its ranges of the inputs.

    The command writes one line at a time and reads only the headers of members.

    \b
    Examples:
      dsort view export tonight --jsonl > tonight.jsonl
      dsort view export tonight --getbatch --batch 128 > requests.jsonl
    """
    from dsort.reading.places import shards_of_result
    from dsort.reading.view_records import get_batch_requests, view_of_places, view_records
    from dsort.results.manifest import parse_manifest

    if jsonl == getbatch:
        raise SpecError([SpecProblem("--jsonl", "give either --jsonl or --getbatch")])
    if batch is not None and not getbatch:
        raise SpecError([SpecProblem("--batch", "works only with --getbatch")])
    found = find_result(view, bucket=bucket, root=root)
    settings = user_settings()
    run = RunOptions(root=data_root(root, settings), settings=settings)
    places = list(shards_of_result(found, run))
    if not places and parse_manifest(found.read()).spec.output == "view":
        return  # a view of no record
    opened = view_of_places(places, f"the result of job {found.job_id}")
    records = view_records(opened, places)
    if getbatch:
        _write_lines(get_batch_requests(opened, records, batch or BATCH_DEFAULT))
    else:
        _write_lines(each.to_json(opened) for each in records)


def _write_lines(documents: Iterable[Mapping[str, Any]]) -> None:
    lines = map(json.dumps, documents)
    while some := list(islice(lines, LINES_AT_ONCE)):
        output.write("\n".join(some))
