"""``dsort log``: prints what the process of a job has written."""

from __future__ import annotations

from typing import Annotated

import click

from dsort.cli import options, output
from dsort.cli.parameters import Option
from dsort.cli.remote import connected, found_jobs

__all__ = ["log"]


def log(
    context: click.Context,
    job: options.RemoteJob,
    follow: Annotated[
        bool, Option("--follow", help="Print new lines of the log, until the job has ended.")
    ] = False,
    as_json: options.AsJson = False,
    *,
    service: options.Service,
    debug: options.Debug = False,
) -> None:
    """Print the log of a job of a service: the lines of the job's process, in all attempts.

    With --json and --follow, the JSON document is printed when the job has ended.
    """
    with connected(context) as client:
        job_id = found_jobs(client, [job])[0].job_id
        pieces = client.follow_log(job_id) if follow else [client.log(job_id)]
        if as_json:
            output.write_json({"job_id": job_id, "log": "".join(pieces)})
            return
        for piece in pieces:
            if piece:
                output.write(piece.removesuffix("\n"))
