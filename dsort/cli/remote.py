"""Sends a verb to a service: the service, the token, and the options that are allowed."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from dsort.cli import output, summary
from dsort.cli.progress import JsonReporter, ProgressStyle, Reporter, make_reporter
from dsort.errors import SpecError, SpecProblem
from dsort.installation import COMMAND, is_part, missing_part, need_extra
from dsort.results.report import Event, JobReport

if TYPE_CHECKING:
    from dsort.client import DsortClient, Job, JobEvent

HERE_ONLY = (
    "root",
    "bucket",
    "scratch",
    "memory_max",
    "bandwidth_max",
    "move",
    "workers",
    "ray",
    "ray_address",
    "ray_resources",
    "ray_labels",
    "max_expansion",
    "remove",
    "all_uploads",
    "state_dir",
    "database",
    "run_code",
    "force",
)
"""Parameters of verbs that set how a job runs here; a service decides that for its jobs."""

THERE_ONLY = ("wait", "priority", "labels", "token_file", "reason", "state", "owner", "wide")
"""Parameters of verbs that have a meaning only for a service."""


def is_remote(context: click.Context) -> bool:
    """Whether the command is for a service: ``--server`` or ``DSORT_SERVER``, and no ``--local``.

    ``SpecError`` names all options that do not fit the place where the command runs.
    """
    server, here = context.params.get("server"), context.params.get("local")
    if server and here and _given(context, "server"):
        raise SpecError("--server and --local contradict each other")
    remote = bool(server) and not here
    if not remote and is_part():
        raise missing_part(context.command_path, takes_a_service=True)
    unfit = HERE_ONLY if remote else THERE_ONLY
    words = (
        f"is for jobs that run here, not at {server}"
        if remote
        else "is for jobs of a service: name it with --server"
    )
    problems = [SpecProblem(option, words) for name in unfit if (option := _given(context, name))]
    if problems:
        hint = "--local runs it here" if remote and not _given(context, "server") else ""
        raise SpecError(problems, hint=hint)
    return remote


@contextmanager
def connected(context: click.Context) -> Iterator[DsortClient]:
    """The service that the command is for. ``SpecError`` if none is named."""
    need_extra("client")
    server = context.params.get("server")
    if not server:
        raise SpecError(
            "no service is named",
            hint="give --server URL, or set DSORT_SERVER; `dsort serve` starts one",
        )
    from dsort.client import DsortClient

    with DsortClient(
        server, token_file=context.params.get("token_file"), on_wait=output.inform
    ) as client:
        yield client


def command_words(context: click.Context, verb: str, *args: str) -> str:
    """A command for the user to type, for the same service: `` `dsort stop JOB` ``."""
    import shlex  # few commands print another one

    words = [COMMAND, verb, *args]
    for name, option in (("server", "--server"), ("token_file", "--token-file")):
        if _given(context, name):
            words += [option, str(context.params[name])]
    return f"`{shlex.join(words)}`"


def found_jobs(client: DsortClient, jobs: Iterable[str]) -> list[Job]:
    """The jobs whose ids are, or begin with, the texts in ``jobs``; without duplicates."""
    found = {job.job_id: job for job in map(client.find, jobs)}
    return list(found.values())


def shards_there(template: str, argument: str) -> tuple[str, str]:
    """(bucket, names in it) of shards at a service. The bucket is the authority of a URI, the first
    part of a path, or the directory of a file's URI. ``argument``: the metavar that a ``SpecError``
    names."""
    scheme, colon, rest = template.rpartition("://")
    if scheme == "file":
        before = rest.find("{")
        end = rest.rfind("/", 0, before if before >= 0 else len(rest))
        bucket, names = f"file://{rest[:end]}", rest[end + 1 :]
    else:
        first, _, names = rest.partition("/")
        bucket = f"{scheme}{colon}{first}"
    if not names or not bucket.removeprefix("file://") or bucket.endswith("://"):
        text = f"{template!r} names no shards in a bucket"
        raise SpecError([SpecProblem(argument, text, "images/train-000.tar")])
    return bucket, names


def _given(context: click.Context, name: str) -> str:
    """The option that sets parameter ``name``, if it is on the command line; else ""."""
    source = context.get_parameter_source(name)
    if source is None or source.name != "COMMANDLINE":
        return ""
    option = next(each for each in context.command.params if each.name == name)
    return str(option.opts[0]) if option.param_type_name == "option" else ""


class Submission(Struct, frozen=True):
    """A job that a verb submits to a service."""

    fields: Mapping[str, Any]
    priority: int = 0
    labels: Sequence[str] = ()
    dry_run: bool = False


def submit(
    context: click.Context,
    asked: Submission,
    *,
    wait: bool,
    progress: ProgressStyle,
    as_json: bool,
    verbose: bool,
    show_all: bool = False,
) -> None:
    """Submit a job. Only its id goes to stdout, unless the verb waits for the job."""
    with connected(context) as client:
        job = client.submit(
            asked.fields,
            priority=asked.priority,
            labels=asked.labels,
            dry_run=asked.dry_run,
        )
        if verbose:
            output.inform(json.dumps(job.spec, indent=2))
        follow(
            context, client, job, wait=wait, progress=progress, as_json=as_json, show_all=show_all
        )


def follow(
    context: click.Context,
    client: DsortClient,
    job: Job,
    *,
    wait: bool,
    progress: ProgressStyle,
    as_json: bool,
    show_all: bool = False,
) -> None:
    """Print the id of a queued job; or, with ``wait``, wait for the job, and exit with its exit
    code."""
    if not wait:
        output.write_either(job.document, job.job_id, as_json=as_json)
        return
    if progress not in ("json", "none"):
        place = f", number {job.queue_position}" if job.queue_position else ""
        output.inform(f"job {job.job_id}: {job.words} at {client.url}{place}")
    ended = watch(context, client, job.job_id, progress=progress)
    write_result(ended, as_json=as_json, show_all=show_all)


def watch(
    context: click.Context,
    client: DsortClient,
    job_id: str,
    *,
    progress: ProgressStyle,
    timeout_s: float | None = None,
) -> Job:
    """Wait for a job, and return it. Its progress goes to stderr meanwhile. Ctrl-C ends the wait,
    and not the job."""
    try:
        with make_reporter(progress) as reporter:
            try:
                return client.wait(
                    job_id, timeout_s=timeout_s, on_event=lambda event: _show(reporter, event)
                )
            except KeyboardInterrupt:
                reporter.break_off(b"")  # the terminal has written ^C after the bars
                raise
    except KeyboardInterrupt:
        stop, wait = (command_words(context, verb, job_id) for verb in ("stop", "wait"))
        output.inform(f"job {job_id} continues")
        output.inform(f"hint: {wait} waits for it,\n      {stop} ends it")
        raise click.exceptions.Exit(128 + signal.SIGINT) from None


def _show(reporter: Reporter, event: JobEvent) -> None:
    value = event.value
    if isinstance(value, Event):
        reporter(value)
        return
    from dsort.client import StateChanged

    if isinstance(reporter, JsonReporter) or not isinstance(value, StateChanged):
        return
    if value.state == "running" and value.attempt > 1:
        with contextlib.suppress(BrokenPipeError):
            reporter.line(f"job {value.job_id}: taken up again (attempt {value.attempt})")


def write_result(job: Job, *, as_json: bool, show_all: bool = False) -> None:
    """Put the result of a job on stdout, in the same form as the verb that runs a job here. Raises
    the job's error."""
    job.raise_if_failed()
    report = job.result
    if report is None:
        output.write(f"job {job.job_id} {job.words}")
    else:
        write_report(report, as_json=as_json, show_all=show_all)


def write_report(
    report: JobReport,
    *,
    as_json: bool,
    show_all: bool = False,
    beside_shard: bool = False,
) -> None:
    """Put the report of a job or of a plan on stdout, whether it ran here or at a service.
    ``beside_shard``: on stderr, because the shard is on stdout."""
    if beside_shard and report.plan is None:
        output.inform(json.dumps(report.to_dict()) if as_json else summary.job(report))
    elif as_json:
        output.write_json(report.to_dict())
    else:
        output.write(summary.job(report, show_all=show_all))
