"""``dsort gc``: list and remove the files that dead jobs left in a bucket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
from msgspec.structs import asdict

from dsort.cli import options, output
from dsort.cli.find import open_existing, opener, scratch_bases
from dsort.cli.parameters import Option
from dsort.cli.remote import connected, is_remote
from dsort.errors import DsortError
from dsort.reading.results import bucket_uri

if TYPE_CHECKING:
    from dsort.job.gc import Garbage
    from dsort.storage.bucket import Bucket

OlderThan = Annotated[
    str | None,
    Option(
        "--older-than",
        metavar="DURATION",
        help="List only files whose last write is at least DURATION ago, as in 12h or "
        "7d.  [default: 24h; with --job: 0s]",
    ),
]
OnlyJob = Annotated[
    str | None,
    Option(
        "--job",
        metavar="JOB",
        help="List only the files that this job left. JOB is the whole job id.",
    ),
]
ScratchOfJobs = Annotated[
    Path | None,
    Option(
        "--scratch",
        metavar="DIR",
        help="The directory where jobs had their scratch on this machine.  [default: the "
        "temporary directory, and the scratch directory of a service]",
    ),
]


def gc(
    context: click.Context,
    bucket: options.BucketUri,
    older_than: OlderThan = None,
    job: OnlyJob = None,
    remove: Annotated[bool, Option("--remove", help="Remove the files that are listed.")] = False,
    all_uploads: Annotated[
        bool,
        Option(
            "--all-uploads",
            help="With --remove: also remove unfinished uploads that dsort did not begin.",
        ),
    ] = False,
    scratch: ScratchOfJobs = None,
    root: options.Root = None,
    as_json: options.AsJson = False,
    *,
    service: options.ServiceOrHere,
    debug: options.Debug = False,
) -> None:
    """List the files that interrupted jobs left in a bucket and in scratch on this machine. With
    --remove, remove the files that are listed. Files of a running job are never removed. A service
    lists the files, and removes no file.

    \b
    Examples:
      dsort gc shuffled
      dsort gc s3://shuffled --older-than 7d --remove
      dsort gc shuffled --job 20260131-235959-4f2a9c --remove
    """
    if older_than is None:
        older_than = "24h" if job is None else "0s"
    older_than_s = options.duration_s(older_than, "--older-than")
    if is_remote(context):
        uri = bucket_uri(bucket)
        with connected(context) as client:
            there = client.data.garbage(uri, older_than_s=older_than_s)
        aged = (each for each in there if each["age_s"] >= older_than_s)
        listed = [(each, False) for each in aged if job in (None, each["job_id"])]
        _write(uri, listed, f"older than {older_than}", as_json=as_json)
        return
    from dsort.job.gc import find_garbage
    from dsort.runtime.ray.directory import ray_places

    opened = open_existing(bucket, root=root)
    bases = [scratch] if scratch else scratch_bases()
    found = find_garbage(opened, scratch_bases=bases, ray_bases=ray_places())
    if job is not None:
        found = [each for each in found if each.job_id == job]
    old = [each for each in found if each.age_s >= older_than_s]
    doomed = [each for each in old if all_uploads or each.kind != "upload" or each.job_id]
    gone, errors = _remove(opened, doomed if remove else [], root)
    what = f"older than {older_than}" if job is None else f"of a dead job {job}"
    _write(opened.uri, [(asdict(each), each in gone) for each in old], what, as_json=as_json)
    if old and not as_json:
        left = len(old) - len(gone)
        if not remove:
            output.inform("nothing was removed: --remove removes these files")
        elif left:
            output.inform(f"{output.count(left, 'item')} of these remain")
    if younger := len(found) - len(old):
        output.inform(f"{younger:,} more are younger than {older_than}")
    for error in errors[1:]:
        output.warn(error.message)
    if errors:
        raise errors[0]


Listed = Sequence[tuple[Mapping[str, Any], bool]]
"""The fields of each file, and whether it was removed."""


def _write(uri: str, listed: Listed, what: str, *, as_json: bool) -> None:
    """``what``: the kind of garbage, for the message that there is no such garbage."""
    if as_json:
        entries = [{**each, "removed": gone} for each, gone in listed]
        output.write_json({"bucket": uri, "garbage": entries})
    elif listed:
        output.write(_table(listed))
    else:
        output.inform(f"no garbage {what} in {output.place(uri)}")


def _remove(
    bucket: Bucket, doomed: Sequence[Garbage], root: Path | None
) -> tuple[list[Garbage], list[DsortError]]:
    """Remove all that can be removed. Returns (what was removed, why the rest was not)."""
    from dsort.job.gc import remove_garbage

    gone: list[Garbage] = []
    errors: list[DsortError] = []
    in_use: set[str] = set()
    for each in doomed:
        if each.job_id in in_use:  # one error for a job that runs is enough
            continue
        try:
            remove_garbage(bucket, each, opened=opener(root))
        except DsortError as error:
            errors.append(error)
            in_use |= {each.job_id} - {""}
        else:
            gone.append(each)
    return gone, errors


def _table(found: Listed) -> str:
    rows = [
        (
            each["kind"],
            output.duration(each["age_s"]),
            output.number(each["objects"]),
            output.size(each["size_bytes"]),
            output.printable(each["where"]),
            _what(each, gone=gone),
        )
        for each, gone in found
    ]
    return output.table(("KIND", "AGE", "FILES", "SIZE", "WHERE", "WHAT"), rows, right="lrrrl")


def _what(each: Mapping[str, Any], *, gone: bool) -> str:
    what = output.printable(each["what"])
    if gone:
        return f"removed: {what}"
    return what + (f"; resume it with `dsort resume {each['job_id']}`" if each["resumable"] else "")
