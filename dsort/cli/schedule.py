"""``dsort schedule``: jobs that a service submits at set times."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click
from msgspec import Struct
from msgspec.structs import asdict

from dsort.cli import options, output
from dsort.cli.parameters import Argument, Option
from dsort.cli.remote import connected
from dsort.durations import format_moment, parse_moment
from dsort.errors import SpecError, SpecProblem

if TYPE_CHECKING:
    from dsort.client import Schedule, ScheduleRun


RUNS_SHOWN = 10
HOOKS = ("on_success", "on_failure")

Name = Annotated[str, Argument(metavar="NAME", help="The name of the schedule.")]


class Settings(Struct, frozen=True, kw_only=True):
    """The settings of a schedule beside the spec of its jobs."""

    cron: Annotated[
        str | None,
        Option(
            metavar="CRON",
            help="The due times of the jobs: minute, hour, day, month and day of the week, as "
            "in '0 2 * * *'.",
        ),
    ] = None
    every: Annotated[
        str | None,
        Option(
            metavar="DURATION",
            help="In place of --cron: the time between two due times, as in 90m, 6h or 1d.",
        ),
    ] = None
    timezone: Annotated[
        str | None,
        Option(
            metavar="ZONE",
            help="The time zone of the schedule, as in Europe/Berlin.  [default: UTC]",
        ),
    ] = None
    start_at: Annotated[
        str | None,
        Option(
            metavar="TIME",
            help="No job is due before this time, as in 2026-12-01T00:00.",
        ),
    ] = None
    end_at: Annotated[
        str | None,
        Option(metavar="TIME", help="No job is due after this time."),
    ] = None
    catch_up: Annotated[
        Literal["none", "last"] | None,
        Option(
            help="The missed due times for which jobs run later: none of them, or the last one.  "
            "[default: last]",
        ),
    ] = None
    overlap: Annotated[
        Literal["skip", "replace"] | None,
        Option(
            help="If an earlier job of the schedule has not ended at a due time: skip the new "
            "job, or replace (stop) the earlier job.  [default: skip]",
        ),
    ] = None
    retain: Annotated[
        int | None,
        Option(
            metavar="N",
            min=1,
            help="Keep the newest N results. The shards of older results are removed.",
        ),
    ] = None
    latest: Annotated[
        str | None,
        Option(
            metavar="PREFIX",
            help="The prefix of latest.json, which names the newest result. With `no`, no "
            "latest.json is written.  [default: the common beginning of the output names]",
        ),
    ] = None
    priority: Annotated[
        int | None,
        Option(metavar="N", help="The priority of the jobs."),
    ] = None
    labels: Annotated[
        list[str] | None,
        Option("--label", metavar="TEXT", help="A label of the jobs; may be repeated."),
    ] = None
    paused: Annotated[
        bool,
        Option(
            help="Add the schedule as paused. `dsort schedule resume` resumes the schedule.",
        ),
    ] = False


def add(
    context: click.Context,
    spec: Annotated[
        str,
        Option(
            "--spec",
            "-f",
            metavar="SPEC",
            help="A JSON or YAML file, `-` for stdin, or the text itself. The text is the "
            "spec of the jobs, or a whole schedule with a field `spec`. In the spec, {{date}}, "
            "{{run_id}} and {{epoch}} stand for values of each run.",
        ),
    ],
    name: Annotated[
        str | None,
        Argument(
            metavar="[NAME]",
            help="The name of the schedule.  [default: the name in the file]",
        ),
    ] = None,
    *,
    settings: Settings,
    replace: Annotated[
        bool, Option("--replace", help="Replace an existing schedule of this name.")
    ] = False,
    as_json: options.AsJson = False,
    service: options.Service,
    debug: options.Debug = False,
) -> None:
    """Add a schedule.

    \b
    Examples:
      dsort schedule add nightly -f shuffle.json --cron '0 2 * * *' \\
        --timezone Europe/Berlin --retain 7
      dsort schedule add -f schedule.yaml
    """
    given = {
        name: value
        for name, value in asdict(settings).items()
        if value is not None and value is not False
    }
    if settings.latest == "no":
        given["latest"] = False
    definition = _definition(spec, given)
    name = name or definition.get("name")
    if not isinstance(name, str):
        raise SpecError([SpecProblem("NAME", "is missing, and the file has no `name`", "nightly")])
    with connected(context) as client:
        change = client.schedules.replace if replace else client.schedules.add
        schedule = change(name, definition)
    for warning in schedule.warnings:
        output.warn(warning)
    output.write_either(
        schedule.document, f"schedule {schedule.name}: {_due(schedule)}", as_json=as_json
    )


def _definition(source: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """A schedule from ``source`` (a whole schedule, or the spec of its jobs) and the options."""
    from dsort.naming.names import closest
    from dsort.spec.load import read_fields

    fields, _ = read_fields(source, stdin=sys.stdin)
    document = dict(fields)
    if "spec" not in fields:  # the fields are those of a job; its hooks belong beside the spec
        hooks = {name: document.pop(name) for name in HOOKS if name in fields}
        document = {"spec": document, **hooks}
    definition = {**document, **given}
    if not (definition.get("cron") or definition.get("every")):
        names = (name for name in fields if "spec" in fields and closest(name, ("cron", "every")))
        hint = f'is "{mistyped}" mistyped?' if (mistyped := next(names, "")) else "'0 2 * * *'"
        raise SpecError(
            [
                SpecProblem(
                    "--cron",
                    "is missing, and --every is, too: one of them sets the due times",
                    hint,
                )
            ]
        )
    return definition


def ls(
    context: click.Context,
    as_json: options.AsJson = False,
    *,
    service: options.Service,
    debug: options.Debug = False,
) -> None:
    """List schedules, with the rule, the next due time and the outcome of the last run of each
    schedule."""
    with connected(context) as client:
        found = client.schedules.list()
    rows = (
        (
            each.name,
            _rule(each),
            _next_due(each),
            "" if each.last_run is None else _state(each.last_run),
            each.owner,
        )
        for each in found
    )
    header = ("SCHEDULE", "DUE", "NEXT", "LAST", "OWNER")
    documents = [each.document for each in found]
    output.write_rows(documents, header, rows, as_json=as_json, empty="there is no schedule")


def show(
    context: click.Context,
    name: Name,
    show_all: options.ShowAll = False,
    as_json: options.AsJson = False,
    *,
    service: options.Service,
    debug: options.Debug = False,
) -> None:
    """Show a schedule: its rule, its next due times, and its runs so far."""
    with connected(context) as client:
        schedule = client.schedules.get(name)
        runs = client.schedules.runs(name)
    if as_json:
        output.write_json({**schedule.document, "runs": [each.document for each in runs]})
        return
    output.write(output.fields(_lines(schedule)))
    shown = runs if show_all else runs[:RUNS_SHOWN]
    if shown:
        rows = [_run_row(schedule, each) for each in shown]
        output.write("\n" + output.table(("DUE", "WHAT", "JOB", "WHY"), rows))
    if len(runs) > len(shown):
        output.inform(f"... and {output.count(len(runs) - len(shown), 'more run')} (--all)")


def pause(
    context: click.Context,
    name: Name,
    as_json: options.AsJson = False,
    *,
    service: options.Service,
    debug: options.Debug = False,
) -> None:
    """Pause a schedule. A running job of the schedule continues."""
    with connected(context) as client:
        paused = client.schedules.pause(name)
    output.write_either(paused.document, f"schedule {name}: paused", as_json=as_json)


def resume(
    context: click.Context,
    name: Name,
    as_json: options.AsJson = False,
    *,
    service: options.Service,
    debug: options.Debug = False,
) -> None:
    """Resume a schedule that is paused."""
    with connected(context) as client:
        resumed = client.schedules.resume(name)
    output.write_either(resumed.document, f"schedule {name}: {_due(resumed)}", as_json=as_json)


def run(
    context: click.Context,
    name: Name,
    as_json: options.AsJson = False,
    *,
    service: options.Service,
    debug: options.Debug = False,
) -> None:
    """Submit the job of a schedule now, in addition to the due times, and print the id of the
    job."""
    with connected(context) as client:
        made = client.schedules.run_now(name)
    if as_json:
        output.write_json(made.document)
    elif made.job_id:
        output.write(made.job_id)
    else:
        output.inform(f"schedule {name}: {made.outcome}, {made.reason}")


def rm(
    context: click.Context,
    name: Name,
    as_json: options.AsJson = False,
    *,
    service: options.Service,
    debug: options.Debug = False,
) -> None:
    """Remove a schedule. The jobs of the schedule and their results stay."""
    with connected(context) as client:
        client.schedules.remove(name)
    output.write_either(
        {"name": name, "removed": True}, f"schedule {name} is removed", as_json=as_json
    )


# --- texts ---------------------------------------------------------------------------------------


def _lines(schedule: Schedule) -> list[tuple[str, str]]:
    document = schedule.document
    coming = [_local(schedule, each) for each in schedule.next_times]
    seed = document.get("next_seed")
    return [
        ("schedule", schedule.name + (", paused" if schedule.paused else "")),
        ("what", output.printable(str(document.get("description") or ""))),
        ("due", _rule(schedule)),
        ("from", _local(schedule, _moment(document.get("start_at")))),
        ("until", _local(schedule, _moment(document.get("end_at")))),
        *((("next" if number == 0 else " "), text) for number, text in enumerate(coming)),
        ("next seed", "" if seed is None else output.printable(str(seed))),
        ("catch up", str(document.get("catch_up") or "")),
        ("overlap", str(document.get("overlap") or "")),
        ("retain", _kept(document.get("retain"))),
        *((name.replace("_", " "), _hook(document.get(name))) for name in HOOKS),
        ("labels", output.printable(", ".join(document.get("labels") or ()))),
        ("priority", str(document.get("priority") or "")),
        ("owner", output.printable(schedule.owner)),
        ("runs", str(schedule.run_count or "")),
    ]


def _hook(hook: object) -> str:
    called = hook.values() if isinstance(hook, Mapping) else ()
    return output.printable(", ".join(map(str, called)))


def _kept(retain: object) -> str:
    return f"the newest {retain} results" if retain else ""


def _rule(schedule: Schedule) -> str:
    document = schedule.document
    when = document.get("cron") or f"every {document.get('every')}"
    return f"{when} {document.get('timezone') or ''}".strip()


def _due(schedule: Schedule) -> str:
    if schedule.paused:
        return "paused"
    coming = f"next due {_next_due(schedule)}" if schedule.next_times else "never due again"
    missed = "it missed a run, which is due now; " if schedule.document.get("due_now") else ""
    return missed + coming


def _next_due(schedule: Schedule) -> str:
    if schedule.paused:
        return "paused"
    return _local(schedule, schedule.next_times[0]) if schedule.next_times else "never"


def _local(schedule: Schedule, at: datetime | None) -> str:
    """A moment in the time zone of the schedule."""
    if at is None:
        return ""
    try:
        zone = ZoneInfo(str(schedule.document.get("timezone") or "UTC"))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        zone = ZoneInfo("UTC")
    return format_moment(at, zone)


def _moment(text: object) -> datetime | None:
    return parse_moment(text) if isinstance(text, str) else None


def _state(run: ScheduleRun) -> str:
    """The result of a run: the state of its job, if it has one."""
    return run.job_state or run.outcome


def _run_row(schedule: Schedule, run: ScheduleRun) -> tuple[str, ...]:
    what = f"{_state(run)}, by hand" if run.by_hand else _state(run)
    why = (run.reason or run.job_error or "") + (", removed since" if run.removed_at else "")
    return _local(schedule, run.due_at), what, run.job_id or "", output.printable(why)
