"""``dsort report``: a job's page as one file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from dsort.cli import options, output
from dsort.cli.find import FoundJob, find_job
from dsort.errors import InputError, StorageError
from dsort.storage.directory.os_errors import StorageErrors

__all__ = ["report"]

STDOUT = "-"

Target = Annotated[
    str | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Where to write it, `-` for stdout.  [default: dsort-JOB.html]",
        show_default=False,
    ),
]
Replace = Annotated[bool, typer.Option("--overwrite", help="Replace FILE if it exists.")]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print what the page shows as JSON; write no file.")
]


def report(
    job: options.JobOrManifest,
    target: Target = None,
    overwrite: Replace = False,
    bucket: options.JobBucket = None,
    root: options.Root = None,
    as_json: AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Write a job's page as one HTML file that needs no network: phases, throughput, warnings,
    output shards, and whether its shuffle is one."""
    found = find_job(job, bucket=bucket, root=root)
    page = _page(found)
    if as_json:
        output.write_json(page)
        return
    from dsort.web.job_page import html

    text = html(page)
    if target == STDOUT:
        output.write(text.rstrip("\n"))
        return
    path = Path(target or f"dsort-{found.job_id}.html")
    _write(path, text, overwrite=overwrite)
    output.inform(f"wrote {output.printable(str(path))}")


def _page(found: FoundJob) -> dict[str, Any]:
    from dsort.web.job_page import page_of_manifest, page_of_report

    if not found.document:
        raise InputError(
            f"job {found.job_id} has not ended: it has neither a manifest nor a report",
            hint=f"see how far it is with `dsort show {found.job_id}`",
        )
    where = f"{found.document} in bucket {found.bucket.uri}"
    try:
        document = json.loads(found.read())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is no JSON document: {error}") from error
    uri = found.bucket.uri if found.in_place else ""
    try:
        make = page_of_manifest if found.finished else page_of_report
        return make(document, output_uri=uri)
    except InputError as error:
        raise InputError(f"{where}: {error.message}") from error


def _write(path: Path, text: str, *, overwrite: bool) -> None:
    place = str(path.parent)
    with StorageErrors(f"write {path.name}", place):
        try:
            file = path.open("w" if overwrite else "x", encoding="utf-8")
        except FileExistsError:
            raise StorageError(
                f"{path} exists", hint="name another file with -o, or replace it: --overwrite"
            ) from None
        with file:
            file.write(text)
