"""``dsort view export``: the ranges of a view, for programs that read the inputs themselves."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Annotated, Any, Final

from dsort.cli import options, output
from dsort.cli.find import data_root, find_job, user_settings
from dsort.cli.parameters import Argument, Option
from dsort.errors import InputError, SpecError, SpecProblem
from dsort.options import RunOptions

__all__ = ["export"]

LINES_AT_ONCE: Final = 100
BATCH_DEFAULT: Final = 256


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
            help=f"The records of a request of GetBatch.  [default: {BATCH_DEFAULT}]",
        ),
    ] = None,
    debug: options.Debug = False,
) -> None:
    """Write the records of a view, in its order, with the ranges of the inputs that have them.

    The command writes one line at a time and reads only the headers of members.

    \b
    Examples:
      dsort view export tonight --jsonl > tonight.jsonl
      dsort view export tonight --getbatch --batch 128 > requests.jsonl
    """
    from dsort.reading.places import shards_of_result
    from dsort.reading.view_records import get_batch_requests, view_of_places, view_records

    if jsonl == getbatch:
        raise SpecError([SpecProblem("--jsonl", "give either --jsonl or --getbatch")])
    if batch is not None and not getbatch:
        raise SpecError([SpecProblem("--batch", "works only with --getbatch")])
    found = find_job(view, bucket=bucket, root=root, finished=True)
    if not found.finished:
        raise InputError(f"job {found.job_id} did not finish: it has no result")
    settings = user_settings()
    run = RunOptions(root=data_root(root, settings), settings=settings)
    places = list(shards_of_result(found, run))
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
