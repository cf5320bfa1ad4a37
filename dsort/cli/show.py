"""``dsort show``: prints the result or the progress of a job, or writes a page about it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
from msgspec import Struct

from dsort.cli import options, output, summary
from dsort.cli.find import find_job
from dsort.cli.job_list import list_jobs, list_jobs_here, look_at
from dsort.cli.parameters import Option
from dsort.cli.remote import command_words, connected, found_jobs, is_remote
from dsort.durations import format_moment
from dsort.errors import InputError, NotFoundError, SpecError, StorageError
from dsort.installation import is_part, missing_part
from dsort.reading.results import FoundJob
from dsort.results.report import output_counts, reaction_counts
from dsort.storage.directory.os_errors import StorageErrors

if TYPE_CHECKING:
    from dsort.client import DsortClient, Job
    from dsort.results.earlier_results import Replacement

STDOUT = "-"


def write_page(page: Mapping[str, Any], target: str, *, overwrite: bool, as_json: bool) -> None:
    """Write the page of a job to the file ``target``, ``-`` for standard output. ``as_json``: print
    the data of the page instead. ``StorageError`` if the file exists, without ``overwrite``."""
    if as_json:
        output.write_json(page)
        return
    if is_part():
        raise missing_part("dsort show --html", takes_a_service=False)
    from dsort.web.job_page import html

    text = html(page)
    if target == STDOUT:
        output.write(text.rstrip("\n"))
        return
    _write(Path(target), text, overwrite=overwrite)
    output.inform(f"wrote {output.printable(target)}")


def page_of(found: FoundJob) -> dict[str, Any]:
    """The data of the page of a job that has ended."""
    from dsort.web.job_page import page_of_manifest, page_of_report

    if not found.document:
        raise InputError(
            f"job {found.job_id} has not ended: it has neither a manifest nor a report",
            hint=f"`dsort show {found.job_id}` shows its progress",
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
                f"{path} exists", hint="name another file, or replace it: --overwrite"
            ) from None
        with file:
            file.write(text)


CLASSES_SHOWN = 10


class ListOptions(Struct, frozen=True, kw_only=True):
    """The options of the list of a service's jobs."""

    state: Annotated[
        list[str] | None,
        Option(
            "--state",
            metavar="STATE",
            help="List the jobs in this state: queued, running, finished, failed or stopped; may "
            "be repeated.",
        ),
    ] = None
    owner: Annotated[
        str | None,
        Option("--owner", metavar="NAME", help="List the jobs of this owner."),
    ] = None
    labels: options.Labels = None
    wide: Annotated[
        bool,
        Option("--wide", "-w", help="With a service: show all columns of the list, uncut."),
    ] = False


def show(
    context: click.Context,
    job: options.JobOrNone = None,
    bucket: options.JobBucket = None,
    show_all: options.ShowAll = False,
    root: options.Root = None,
    html: Annotated[
        str | None,
        Option(
            "--html",
            metavar="FILE",
            help="Write the page of the job to FILE, `-` for stdout. The page is one file "
            "that needs no network. The page shows phases, throughput, warnings, shards, and how "
            "well the records are mixed.",
        ),
    ] = None,
    overwrite: Annotated[bool, Option("--overwrite", help="With --html: replace FILE.")] = False,
    as_json: options.AsJson = False,
    *,
    listed: ListOptions,
    service: options.ServiceOrHere,
    debug: options.Debug = False,
) -> None:
    """Show the result, the figures and the warnings of a job, or the progress of a running job.
    Without JOB: list the jobs of the data root, of --bucket or of a service, newest first."""
    if html is not None and job is None:
        raise SpecError("--html is for one job: name it")
    if is_remote(context):
        if job is not None and html is not None:
            with connected(context) as client:
                page = client.page(found_jobs(client, [job])[0].job_id)
            write_page(page, html, overwrite=overwrite, as_json=as_json)
        elif job is not None:
            if listed != ListOptions():
                raise SpecError(
                    "--state, --owner, --label and --wide are for lists: leave them out, or name "
                    "no job"
                )
            show_job(context, job, show_all=show_all, as_json=as_json)
        else:
            list_jobs(
                context,
                states=listed.state or (),
                owner=listed.owner,
                labels=listed.labels or (),
                show_all=show_all,
                wide=listed.wide,
                as_json=as_json,
            )
        return
    if job is None:
        list_jobs_here(bucket, root, show_all=show_all, as_json=as_json)
        return
    found = find_job(job, bucket=bucket, root=root)
    if html is not None:
        write_page(page_of(found), html, overwrite=overwrite, as_json=as_json)
    elif found.finished:
        show_finished(found, show_all=show_all, as_json=as_json)
    else:
        _show_unfinished(found, as_json=as_json)


def _show_unfinished(found: FoundJob, *, as_json: bool) -> None:
    unfinished = look_at(found)
    if found.document and not (unfinished.hold.live or unfinished.resumable):
        _show_aborted(found, as_json=as_json)
    elif as_json:
        output.write_json(unfinished.to_dict())
    else:
        output.write(unfinished.text())


def show_finished(found: FoundJob, *, show_all: bool = False, as_json: bool = False) -> None:
    """Print the result of a finished job on stdout."""
    manifest = found.parsed()
    replaced = [each.words for each in replaced_shards(found, manifest)]
    if as_json:
        output.write_json({**manifest, "replaced": replaced} if replaced else manifest)
        return
    with _refusing_strangers(found):
        output.write(_finished(found, manifest, "; ".join(replaced)))
        output.write("\n" + shards_text(manifest["outputs"], show_all))


def replaced_shards(found: FoundJob, manifest: Any) -> list[Replacement]:
    """The shards of a finished job that later jobs replaced. ``manifest``: its document."""
    from dsort.results.earlier_results import later_results, replacements
    from dsort.results.manifest import parse_manifest

    created = str(manifest.get("created")) if isinstance(manifest, Mapping) else ""
    if not found.in_place or not later_results(found.bucket, created, found.job_id):
        return []  # the usual case, without parsing
    try:
        return replacements(found.bucket, parse_manifest(found.read()))
    except InputError:
        return []  # a manifest of another version; as much of it as possible is shown


def _show_aborted(found: FoundJob, *, as_json: bool) -> None:
    report = found.parsed()
    if as_json:
        output.write_json(report)
        return
    with _refusing_strangers(found):
        lines = [
            ("job", f"{report['job_id']} {report['state']}"),
            ("why", report.get("error") or ""),
            ("to", output.printable(output.place(found.bucket.uri))),
            ("shards", f"{report['input_shards']:,} in, no result"),
            *summary.reaction_lines(reaction_counts(report["reactions"])),
        ]
        output.write(output.fields(lines))


@contextmanager
def _refusing_strangers(found: FoundJob) -> Iterator[None]:
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise InputError(
            f"{found.where} is no manifest of a dsort job: {error} is missing or of another type",
            hint="`dsort show --json` prints the document as it is",
        ) from error


def _sidecars(manifest: Mapping[str, Any]) -> str:
    listed = manifest.get("sidecars") or []
    kinds = dict.fromkeys(each["kind"] for each in listed)
    return f"{output.count(len(listed), 'file')} for {', '.join(kinds)}" if listed else ""


def _classes(manifest: Mapping[str, Any]) -> str:
    """The first classes of files in folders, with their numbers."""
    classes = manifest.get("classes") or {}
    if not classes:
        return ""
    first = itertools.islice(classes.items(), CLASSES_SHOWN)
    shown = ", ".join(f"{output.printable(name)} {number:d}" for name, number in first)
    return f"{len(classes):,}: {shown}" + ", …" * (len(classes) > CLASSES_SHOWN)


def _finished(found: FoundJob, manifest: Mapping[str, Any], replaced: str) -> str:
    spec, totals, move = manifest["spec"], manifest["totals"], manifest["move"]
    phases = manifest["phase_seconds"]
    shards = f"{totals['input_shards']:,} in, {totals['output_shards']:,} out"
    algorithm, like = spec["algorithm"], spec.get("like")
    return output.fields(
        [
            ("job", f"{manifest['job_id']} finished {manifest['created']}"),
            ("what", output.printable(spec.get("description") or "")),
            ("from", output.printable(_inputs(spec))),
            ("to", output.printable(output.place(found.bucket.uri))),
            ("amends", output.printable(str(manifest.get("amends") or ""))),
            ("replaced", output.printable(replaced)),
            ("algorithm", output.printable(f"as in {like}") if like else _in_words(algorithm)),
            ("seed", str(algorithm.get("seed") or "")),
            ("shards", shards),
            ("records", summary.records_line(totals["records"], totals["members"])),
            ("bytes", summary.bytes_line(totals["payload_bytes"], totals["file_bytes"])),
            *summary.output_lines(output_counts(manifest)),
            ("movement", str(move.get("way", ""))),
            ("took", _took(sum(phases.values()), phases)),
            ("index", manifest.get("index") or ""),
            ("sidecars", _sidecars(manifest)),
            ("classes", _classes(manifest)),
            ("names of reactions", manifest.get("reactions_file") or ""),
            ("mixing", summary.mixing(spec, manifest.get("mixing"))),
            *summary.reaction_lines(reaction_counts(manifest["reactions"])),
        ]
    )


def _took(total_s: float | None, phases: Mapping[str, float]) -> str:
    """The duration of a job, and of each of its phases."""
    each = ", ".join(f"{name} {output.duration(seconds)}" for name, seconds in phases.items())
    return ": ".join(filter(None, ["" if total_s is None else output.duration(total_s), each]))


def _in_words(algorithm: Mapping[str, Any]) -> str:
    kind = str(algorithm["kind"])
    # For users who forgot to name an algorithm.
    by_name = ": sorted by name" * (kind == "alphanumeric")
    more = by_name + ", decreasing" * bool(algorithm["decreasing"])
    keys = [str(each["kind"]) for each in algorithm.get("keys") or ()]
    more += f": by {', then '.join(keys)}" * bool(keys)
    for name, field in (("interleave", "by"), ("batches", "similar")):
        if placed := algorithm.get(name):
            more += f", {name}: {placed[field]}"
    return output.printable(kind + more)


def _inputs(spec: Mapping[str, Any]) -> str:
    """The buckets that a spec reads."""
    named = spec.get("inputs")
    if not named:
        return _bucket(spec["input_bck"])
    return ", ".join(f"{each['name']}: {_bucket(each['input_bck'])}" for each in named)


def _bucket(value: str | Mapping[str, str]) -> str:
    """A bucket of a spec as a text."""
    if isinstance(value, str):
        return value
    place = "/".join(filter(None, (value["name"], value.get("prefix"))))
    return f"{value['provider']} bucket {place}" + (
        f" at {value['endpoint_url']}" if "endpoint_url" in value else ""
    )


def shards_text(outputs: Sequence[Mapping[str, Any]], show_all: bool) -> str:
    """The output shards of a manifest, or the first of them."""
    return summary.some_shards(
        ("SHARD", "RECORDS", "SIZE", "XXH3"),
        outputs,
        lambda each: (
            output.printable(each["name"]),
            output.number(each["records"]),
            output.size(each["file_bytes"]),
            each["xxh3"],
        ),
        right="lrrl",
        show_all=show_all,
        lists_all="--all",
    )


def show_job(context: click.Context, name: str, *, show_all: bool, as_json: bool) -> None:
    """Print on stdout all that the service has about one job."""
    with connected(context) as client:
        job = found_jobs(client, [name])[0]
        if as_json:
            output.write_json(job.document)
            return
        output.write(output.fields(_lines(context, job)))
        shards = _shards(client, job, show_all)
    if shards:
        output.write(f"\n{shards}")


def _lines(context: click.Context, job: Job) -> list[tuple[str, str]]:
    place = f", number {job.queue_position} in the queue" if job.queue_position else ""
    kind = ", a plan" if job.kind == "plan" else ""
    where = f"{job.host or ''}" + (f" (attempt {job.attempt})" if job.attempt > 1 else "")
    phases = {each.phase: each.seconds for each in job.phases}
    return [
        ("job", f"{job.job_id} {job.words}{place}{kind}"),
        ("why", output.printable(job.stop_reason or "") if job.error is None else ""),
        *_error_lines(job),
        ("what", output.printable(job.description)),
        ("from", output.printable(output.place(job.input_uri))),
        ("to", output.printable(output.place(job.output_uri))),
        ("owner", output.printable(job.owner)),
        ("labels", output.printable(", ".join(job.labels))),
        ("priority", str(job.priority or "")),
        ("schedule", output.printable(job.schedule or "")),
        ("queued", _moment(job.created_at)),
        ("began", _moment(job.started_at)),
        ("ended", _moment(job.ended_at)),
        ("on", output.printable(where)),
        ("now", _now(job)),
        ("took", _took(job.took_s, phases)),
        *(summary.figures(job.result) if job.result else ()),
        ("mixing", _mixing(job.document)),
        ("next", _next(context, job)),
    ]


def _error_lines(job: Job) -> list[tuple[str, str]]:
    if job.error is None:
        return []
    lines = job.error.message.strip().splitlines()
    return [
        *(
            ("error" if number == 0 else " ", output.printable(line))
            for number, line in enumerate(lines)
        ),
        ("hint", output.printable(job.error.hint)),
    ]


def _mixing(view: Mapping[str, Any]) -> str:
    counts = (view.get("result") or {}).get("mixing")
    return summary.mixing(view["spec"], counts) if counts else ""


def _now(job: Job) -> str:
    if job.state != "running":
        return ""
    if job.progress is None:
        return job.phase or "it begins"
    return f"{job.progress.phase}: {summary.progress_text(job.progress)}"


def _next(context: click.Context, job: Job) -> str:
    if not job.ended:
        words = {verb: command_words(context, verb, job.job_id) for verb in ("wait", "stop")}
        return "" if job.stopping else f"{words['wait']} waits for it, {words['stop']} ends it"
    if job.state == "finished":
        return ""
    return f"resume it with {command_words(context, 'resume', job.job_id)}"


def _moment(at: datetime | None) -> str:
    return "" if at is None else format_moment(at)


def _shards(client: DsortClient, job: Job, show_all: bool) -> str:
    if job.result is not None and job.result.plan is not None:
        return summary.planned_shards(job.result, show_all)
    if job.state != "finished":
        return ""

    try:
        manifest: Mapping[str, Any] = client.manifest(job.job_id)
    except (NotFoundError, StorageError) as error:
        output.warn(f"its output shards cannot be listed: {error.message}")
        return ""
    return shards_text(manifest["outputs"], show_all)
