"""``dsort append`` and ``dsort remove``: add shards to a result, write shards of a result again
without some records."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
from msgspec.structs import replace

from dsort.cli import options, output
from dsort.cli.find import find_result
from dsort.cli.parameters import Argument, Option
from dsort.cli.progress import make_reporter
from dsort.cli.remote import (
    Submission,
    connected,
    found_jobs,
    is_remote,
    submit,
    write_report,
)
from dsort.cli.run import run_options, stoppable
from dsort.errors import InputError
from dsort.installation import is_part, missing_part
from dsort.reading.results import FoundJob, bucket_uri

if TYPE_CHECKING:
    from dsort.amendments import Removal

Dataset = Annotated[
    str,
    Argument(
        metavar="RESULT",
        help="The result: its bucket, the id of its newest job, or the path of its manifest.",
    ),
]

_NewShards = Annotated[
    list[str],
    Argument(
        metavar="SRC",
        help="The bucket with new shards. If RESULT was joined from several inputs: "
        "NAME=BUCKET for each input.",
    ),
]
_Template = Annotated[
    str | None,
    Option("--template", metavar="TEMPLATE", help="The shards of SRC to add.  [default: all]"),
]
_Names = Annotated[
    str | None,
    Option(
        "--names",
        metavar="TEMPLATE",
        help="The names of the new shards.  [default: as in RESULT, with the next numbers]",
    ),
]
_DuplicateKeys = Annotated[
    str | None,
    Option(
        "--duplicate-keys",
        metavar="POLICY",
        help="The policy for new records with a key that RESULT or another new record "
        "has: abort, drop, warn or ignore. With ignore, the shards of RESULT are not read.  "
        "[default: as in the spec of RESULT]",
    ),
]
_RunCode = Annotated[
    bool,
    Option(
        "--run-code",
        help="Run the code that is named in the steps of the result's spec. The spec "
        "comes from the bucket: use --run-code only for a result of your own.",
    ),
]


def append(
    context: click.Context,
    dataset: Dataset,
    src: _NewShards,
    template: _Template = None,
    names: _Names = None,
    duplicate_keys: _DuplicateKeys = None,
    bucket: options.JobBucket = None,
    root: options.Root = None,
    *,
    run: options.RunArguments,
    run_code: _RunCode = False,
    progress: options.ProgressOption = "auto",
    as_json: options.AsJson = False,
    wait: options.WaitOption = False,
    priority: options.Priority = 0,
    labels: options.Labels = None,
    service: options.ServiceOrHere,
    debug: options.Debug = False,
) -> None:
    """Add the records of new shards to a result, in the order, sizes and steps of its spec.

    The shards of the result stay. The keys in these shards are read and compared with the keys of
    the new records, as duplicate_keys of the spec says. A new manifest, written last, lists the old
    and the new shards. At a service, RESULT is the id of a job, and the token must be the token of
    an admin.

    \b
    Examples:
      dsort append shuffled images-of-today
      dsort append s3://data/all s3://data/new --template "part-{000..099}"
      dsort append s3://data/all s3://data/new --duplicate-keys drop
    """
    new = {"template": template, "output_format": names, "duplicate_keys": duplicate_keys}
    if is_remote(context):
        fields = _fields_there(context, dataset, _source(src), new)
        asked = Submission(fields, priority, labels or ())
        submit(context, asked, wait=wait, progress=progress, as_json=as_json, verbose=False)
        return
    found = _found_in_place(dataset, bucket, root)
    as_given = replace(run_options(run, root=root, overwrite=False), runs_code=run_code)
    from dsort import api

    with make_reporter(progress) as reporter, stoppable(reporter) as stop:
        report = api.append(
            found.read(),
            _source(src),
            place=found.bucket_uri,
            **new,
            options=as_given,
            on_event=reporter,
            stop=stop,
        )
    write_report(report, as_json=as_json)


def _fields_there(
    context: click.Context,
    dataset: str,
    source: str | dict[str, str],
    new: Mapping[str, str | None],
) -> dict[str, Any]:
    """The fields of the spec that appends to the result of a service's job."""
    if is_part():  # the engine is needed to read a manifest
        raise missing_part("dsort append", takes_a_service=False)
    from dsort.amendments import append_fields
    from dsort.results.manifest import parse_manifest

    with connected(context) as client:
        manifest = client.manifest(found_jobs(client, [dataset])[0].job_id)
    base = parse_manifest(json.dumps(manifest).encode())
    return append_fields(base, base.spec.canonical()["output_bck"], source, **new)


def _source(given: list[str]) -> str | dict[str, str]:
    """The bucket with new shards, or a mapping of the buckets of several inputs by name."""
    if len(given) == 1:
        return bucket_uri(given[0])
    pairs = [each.partition("=") for each in given]
    if not all(name and equals for name, equals, _ in pairs):
        raise InputError(
            "SRC must be one bucket", hint="if RESULT was joined: NAME=BUCKET for each input"
        )
    return {name: bucket_uri(text) for name, _, text in pairs}


def _found_in_place(dataset: str, bucket: str | None, root: Path | None) -> FoundJob:
    """The result. ``InputError`` if the job has no result, or if its manifest is not beside its
    shards."""
    found = find_result(dataset, bucket=bucket, root=root)
    if not found.in_place:
        raise InputError(
            f"the manifest of job {found.job_id} is not in the bucket of its result",
            hint="name the bucket",
        )
    return found


def remove(
    dataset: Dataset,
    keys: Annotated[
        Path,
        Option(
            "--keys",
            metavar="FILE",
            help="The file with the keys of the records, one a line.",
        ),
    ],
    bucket: options.JobBucket = None,
    root: options.Root = None,
    *,
    force: options.Force = False,
    run: options.RunArguments,
    progress: options.ProgressOption = "auto",
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Remove records from a result. Only the shards that hold these records are written again.

    The rewritten shards and a new manifest get their names in one commit. The command reports keys
    that no record has.

    \b
    Examples:
      dsort remove shuffled --keys takedown.txt
      dsort remove s3://data/all --keys takedown.txt && dsort verify s3://data/all
    """
    found = _found_in_place(dataset, bucket, root)
    as_given = run_options(run, root=root, overwrite=False, force=force)
    from dsort import api

    with make_reporter(progress) as reporter, stoppable(reporter) as stop:
        done = api.remove(
            found.read(),
            keys,
            place=found.bucket_uri,
            options=as_given,
            on_event=reporter,
            stop=stop,
        )
    if as_json:
        output.write_json(done.to_dict())
        return
    output.write(_shown(done))
    for key in done.found.missing:
        output.warn(f"no record has the key {output.printable(key)}")


def _shown(done: Removal) -> str:
    if done.job is None:
        return "no record has one of these keys: nothing was done"
    return output.fields(
        [
            ("job", f"{done.job.job_id} finished"),
            ("result", output.place(done.job.output_uri)),
            ("manifest", output.printable(done.job.manifest_name or "")),
            ("removed", output.count(done.found.records, "record")),
            ("written", f"{output.count(done.job.output_shards, 'shard')} again"),
            ("not found", output.count(len(done.found.missing), "key")),
        ]
    )
