"""``dsort show``: what a job did, or does."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from dsort.cli import options, output
from dsort.cli.job_lookup import FoundJob, find_job
from dsort.cli.remote import there
from dsort.cli.remote_show import list_jobs, show_job
from dsort.cli.show_unfinished import look_at
from dsort.cli.summary import bytes_line, mixing, reaction_lines, records_line
from dsort.errors import InputError, SpecError
from dsort.job.events import ReactionCount

__all__ = ["shards_text", "show", "show_finished"]

SHARDS_SHOWN = 10


def show(
    context: typer.Context,
    job: options.JobOrNone = None,
    bucket: options.JobBucket = None,
    show_all: options.ShowAll = False,
    root: options.Root = None,
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            metavar="STATE",
            help="List those: queued, running, finished, failed or stopped; may be repeated.",
            show_default=False,
        ),
    ] = None,
    owner: Annotated[
        str | None,
        typer.Option("--owner", metavar="NAME", help="List theirs.", show_default=False),
    ] = None,
    labels: options.Labels = None,
    as_json: options.AsJson = False,
    server: options.Server = None,
    token_file: options.TokenFile = None,
    local: options.Local = False,
    debug: options.Debug = False,
) -> None:
    """Show what a job did: its result, its figures, and what it met; or how far it is. With a
    service and without JOB: the service's jobs, newest first."""
    if there(context):
        if job is not None:
            if state or owner or labels:
                raise SpecError("--state, --owner and --label list jobs: name none, or leave them")
            show_job(context, job, show_all=show_all, as_json=as_json)
        else:
            list_jobs(
                context,
                states=state or (),
                owner=owner,
                labels=labels or (),
                show_all=show_all,
                as_json=as_json,
            )
        return
    if job is None:
        raise SpecError("which job? none is named", hint="with --server it lists a service's jobs")
    found = find_job(job, bucket=bucket, root=root)
    if found.finished:
        show_finished(found, show_all=show_all, as_json=as_json)
        return
    unfinished = look_at(found)
    if found.document and not (unfinished.hold.live or unfinished.resumable):
        _show_aborted(found, as_json=as_json)
    elif as_json:
        output.write_json(unfinished.to_dict())
    else:
        output.write(unfinished.text())


def show_finished(found: FoundJob, *, show_all: bool = False, as_json: bool = False) -> None:
    """Put what a finished job did on stdout."""
    manifest = _parsed(found)
    if as_json:
        output.write_json(manifest)
        return
    with _refusing_strangers(found):
        output.write(_finished(found, manifest))
        output.write("\n" + shards_text(manifest["outputs"], show_all))


def _show_aborted(found: FoundJob, *, as_json: bool) -> None:
    report = _parsed(found)
    if as_json:
        output.write_json(report)
        return
    with _refusing_strangers(found):
        output.write(_aborted(found, report))


@contextmanager
def _refusing_strangers(found: FoundJob) -> Iterator[None]:
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise InputError(
            f"{_where(found)} is no manifest of a dsort job: {error} is missing or of another type",
            hint="`dsort show --json` prints it as it is",
        ) from error


def _parsed(found: FoundJob) -> Any:
    try:
        return json.loads(found.read())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{_where(found)} is no JSON document: {error}") from error


def _where(found: FoundJob) -> str:
    return f"{found.document} in bucket {found.bucket.uri}"


def _finished(found: FoundJob, manifest: Mapping[str, Any]) -> str:
    spec, totals, move = manifest["spec"], manifest["totals"], manifest["move"]
    phases = manifest["phase_seconds"]
    shards = f"{totals['input_shards']:,} in, {totals['output_shards']:,} out"
    algorithm = spec["algorithm"]
    return output.fields(
        [
            ("job", f"{manifest['job_id']} finished {manifest['created']}"),
            ("what", output.printable(spec.get("description") or "")),
            ("from", output.printable(_bucket(spec["input_bck"]))),
            ("to", output.printable(output.place(found.bucket.uri))),
            ("algorithm", _in_words(algorithm)),
            ("seed", str(algorithm.get("seed") or "")),
            ("shards", shards),
            ("records", records_line(totals["records"], totals["members"])),
            ("bytes", bytes_line(totals["payload_bytes"], totals["file_bytes"])),
            ("moved by", str(move.get("way", ""))),
            ("took", ", ".join(f"{name} {output.duration(s)}" for name, s in phases.items())),
            ("index", manifest.get("index") or ""),
            ("names of reactions", manifest.get("reactions_file") or ""),
            ("mixing", mixing(spec, manifest.get("mixing"))),
            *reaction_lines(_reactions(manifest["reactions"])),
        ]
    )


def _in_words(algorithm: Mapping[str, Any]) -> str:
    kind = str(algorithm["kind"])
    by_name = ": sorted by name" * (kind == "alphanumeric")  # who forgot to name one may wonder
    return output.printable(kind) + by_name + ", decreasing" * bool(algorithm["decreasing"])


def _bucket(value: str | Mapping[str, str]) -> str:
    """A bucket of a spec: its text, or the object's as a text."""
    if isinstance(value, str):
        return value
    place = "/".join(filter(None, (value["name"], value.get("prefix"))))
    return f"{value['provider']} bucket {place}" + (
        f" at {value['endpoint_url']}" if "endpoint_url" in value else ""
    )


def _aborted(found: FoundJob, report: Mapping[str, Any]) -> str:
    return output.fields(
        [
            ("job", f"{report['job_id']} {report['state']}"),
            ("why", report.get("error") or ""),
            ("to", output.printable(output.place(found.bucket.uri))),
            ("shards", f"{report['input_shards']:,} in, no result"),
            *reaction_lines(_reactions(report["reactions"])),
        ]
    )


def _reactions(entries: Sequence[Mapping[str, Any]]) -> list[ReactionCount]:
    return [ReactionCount(each["kind"], each["count"], tuple(each["samples"])) for each in entries]


def shards_text(outputs: Sequence[Mapping[str, Any]], show_all: bool) -> str:
    """The output shards of a manifest, or the first of them."""
    shown = outputs if show_all else outputs[:SHARDS_SHOWN]
    rows = [
        (
            output.printable(each["name"]),
            output.number(each["records"]),
            output.size(each["file_bytes"]),
            each["xxh3"],
        )
        for each in shown
    ]
    text = output.table(("SHARD", "RECORDS", "SIZE", "XXH3"), rows, right="lrrl")
    hidden = len(outputs) - len(shown)
    return text + (
        f"\n... and {output.count(hidden, 'more shard')} (--all lists them)" * (hidden > 0)
    )
