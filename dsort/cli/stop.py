"""``dsort stop``: end a job that runs somewhere else."""

from __future__ import annotations

from dsort.cli import options, output
from dsort.cli.find_job import find_job
from dsort.errors import JobConflictError, ObjectNotFoundError

__all__ = ["stop"]


def stop(
    job: options.JobName,
    bucket: options.JobBucket = None,
    root: options.Root = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Stop a job that runs here or elsewhere, and wait until it has ended. It sees the request
    within seconds."""
    from dsort.core.manifest import manifest_name
    from dsort.lease import stop_job

    found = find_job(job, bucket=bucket, root=root)
    if found.finished:
        _tell(found.job_id, "finished", "has finished already", as_json=as_json)
        return
    hold = stop_job(found.bucket, found.job_id)
    if hold.live:
        raise JobConflictError(
            f"job {found.job_id} was asked to stop, but it still runs",
            hint=f"`dsort show {found.job_id}` tells where",
        )
    try:
        found.bucket.stat(manifest_name(found.job_id))
    except ObjectNotFoundError:
        _tell(found.job_id, "stopped", "has stopped", as_json=as_json)
    else:
        _tell(found.job_id, "finished", "has finished meanwhile", as_json=as_json)


def _tell(job_id: str, state: str, words: str, *, as_json: bool) -> None:
    if as_json:
        output.write_json({"job_id": job_id, "state": state})
    else:
        output.write(f"job {job_id} {words}")
