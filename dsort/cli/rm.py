"""``dsort rm``: removes ended jobs from the history of a service."""

from __future__ import annotations

import click

from dsort.cli import options, output
from dsort.cli.remote import command_words, connected, found_jobs
from dsort.errors import ConflictError

__all__ = ["rm"]


def rm(
    context: click.Context,
    jobs: options.RemoteJobs,
    as_json: options.AsJson = False,
    *,
    service: options.Service,
    debug: options.Debug = False,
) -> None:
    """Remove ended jobs from the history of a service. The shards that the jobs wrote stay."""
    with connected(context) as client:
        found = found_jobs(client, jobs)
        running = [job.job_id for job in found if not job.ended]
        if running:
            raise ConflictError(
                f"job {', '.join(running)} is not over: nothing was removed",
                hint=f"{command_words(context, 'stop', *running)} ends it",
            )
        for job in found:
            client.remove(job.job_id)
            if not as_json:
                output.write(f"job {job.job_id} is removed from the history")
    if as_json:
        output.write_json([{"job_id": job.job_id, "removed": True} for job in found])
