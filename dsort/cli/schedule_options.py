"""The options of ``dsort schedule add``: the fields of a schedule."""

from __future__ import annotations

from typing import Annotated, Literal

from dsort.cli.parameters import Option

__all__ = [
    "CatchUp",
    "Cron",
    "EndAt",
    "Every",
    "Labels",
    "Latest",
    "Overlap",
    "Paused",
    "Priority",
    "Replace",
    "Retain",
    "Spec",
    "StartAt",
    "Timezone",
]

Spec = Annotated[
    str,
    Option(
        "--spec",
        "-f",
        metavar="SPEC",
        help="A JSON or YAML file, `-` for stdin, or the text itself. The text is the "
        "spec of the jobs, or a whole schedule with a field `spec`. In the spec, {{date}}, "
        "{{run_id}} and {{epoch}} stand for values of each run.",
    ),
]
Cron = Annotated[
    str | None,
    Option(
        "--cron",
        metavar="CRON",
        help="The due times of the jobs: minute, hour, day, month and day of the week, as "
        "in '0 2 * * *'.",
    ),
]
Every = Annotated[
    str | None,
    Option(
        "--every",
        metavar="DURATION",
        help="In place of --cron: the time between two due times, as in 90m, 6h or 1d.",
    ),
]
Timezone = Annotated[
    str | None,
    Option(
        "--timezone",
        metavar="ZONE",
        help="The time zone of the schedule, as in Europe/Berlin.  [default: UTC]",
    ),
]
StartAt = Annotated[
    str | None,
    Option(
        "--start-at",
        metavar="TIME",
        help="No job is due before this time, as in 2026-12-01T00:00.",
    ),
]
EndAt = Annotated[
    str | None,
    Option("--end-at", metavar="TIME", help="No job is due after this time."),
]
CatchUp = Annotated[
    Literal["none", "last"] | None,
    Option(
        "--catch-up",
        help="The missed due times for which jobs run later: none of them, or the last one.  "
        "[default: last]",
    ),
]
Overlap = Annotated[
    Literal["skip", "replace"] | None,
    Option(
        "--overlap",
        help="If an earlier job of the schedule has not ended at a due time: skip the new "
        "job, or replace (stop) the earlier job.  [default: skip]",
    ),
]
Retain = Annotated[
    int | None,
    Option(
        "--retain",
        metavar="N",
        min=1,
        help="Keep the newest N results. The shards of older results are removed.",
    ),
]
Latest = Annotated[
    str | None,
    Option(
        "--latest",
        metavar="PREFIX",
        help="The prefix of latest.json, which names the newest result. With `no`, no "
        "latest.json is written.  [default: the common beginning of the output names]",
    ),
]
Priority = Annotated[
    int | None,
    Option("--priority", metavar="N", help="The priority of the jobs."),
]
Labels = Annotated[
    list[str] | None,
    Option("--label", metavar="TEXT", help="A label of the jobs; may be repeated."),
]
Paused = Annotated[
    bool,
    Option(
        "--paused", help="Add the schedule as paused. `dsort schedule resume` resumes the schedule."
    ),
]
Replace = Annotated[bool, Option("--replace", help="Replace an existing schedule of this name.")]
