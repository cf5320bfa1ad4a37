"""The options of ``dsort schedule add``: what a schedule is, field by field."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

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
    typer.Option(
        "--spec",
        "-f",
        metavar="SPEC",
        help="A JSON or YAML file, `-` for stdin, or the text itself: the spec of its jobs, or "
        "a whole schedule with a `spec` in it. {{date}}, {{run_id}} and {{epoch}} in it are "
        "another text in each run.",
        show_default=False,
    ),
]
Cron = Annotated[
    str | None,
    typer.Option(
        "--cron",
        metavar="CRON",
        help="When: minute, hour, day, month and day of the week, as in '0 2 * * *'.",
        show_default=False,
    ),
]
Every = Annotated[
    str | None,
    typer.Option(
        "--every",
        metavar="DURATION",
        help="In place of --cron, how often: 90m, 6h, 1d.",
        show_default=False,
    ),
]
Timezone = Annotated[
    str | None,
    typer.Option(
        "--timezone",
        metavar="ZONE",
        help="As in Europe/Berlin.  [default: UTC]",
        show_default=False,
    ),
]
StartAt = Annotated[
    str | None,
    typer.Option(
        "--start-at",
        metavar="TIME",
        help="Not due before, as 2026-12-01T00:00.",
        show_default=False,
    ),
]
EndAt = Annotated[
    str | None,
    typer.Option("--end-at", metavar="TIME", help="Not due after.", show_default=False),
]
CatchUp = Annotated[
    Literal["none", "last", "all"] | None,
    typer.Option(
        "--catch-up",
        help="Which due times that were missed are made up for.  [default: last]",
        show_default=False,
    ),
]
Overlap = Annotated[
    Literal["skip", "queue", "replace"] | None,
    typer.Option(
        "--overlap",
        help="If its last job is not over at a due time: skip this one, queue it, or stop the "
        "last one.  [default: skip]",
        show_default=False,
    ),
]
Retain = Annotated[
    int | None,
    typer.Option(
        "--retain",
        metavar="N",
        min=1,
        help="Keep so many results; the shards of older ones are removed.",
        show_default=False,
    ),
]
Latest = Annotated[
    str | None,
    typer.Option(
        "--latest",
        metavar="PREFIX",
        help="Where latest.json says which result is the newest; no: nowhere.  [default: what "
        "the outputs' names share]",
        show_default=False,
    ),
]
Priority = Annotated[
    int | None,
    typer.Option("--priority", metavar="N", help="Of its jobs.", show_default=False),
]
Labels = Annotated[
    list[str] | None,
    typer.Option(
        "--label", metavar="TEXT", help="Of its jobs; may be repeated.", show_default=False
    ),
]
Paused = Annotated[bool, typer.Option("--paused", help="It rests until resumed.")]
Replace = Annotated[bool, typer.Option("--replace", help="Put it in place of one of that name.")]
