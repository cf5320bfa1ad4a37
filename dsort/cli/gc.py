"""``dsort gc``: list, and remove, what dead jobs left in a bucket."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dsort.cli import options, output
from dsort.cli.find import open_existing, opener, scratch_bases
from dsort.cli.options import duration_s
from dsort.errors import DsortError

if TYPE_CHECKING:
    from dsort.job.gc import Garbage
    from dsort.storage.bucket import Bucket

__all__ = ["gc"]

OlderThan = Annotated[
    str | None,
    typer.Option(
        "--older-than",
        metavar="DURATION",
        help="Only files that were last written so long ago: 12h, 7d.  [default: 24h; with --job: "
        "0s]",
        show_default=False,
    ),
]
OnlyJob = Annotated[
    str | None,
    typer.Option("--job", metavar="JOB", help="Only what this job left: its whole id."),
]
ScratchOfJobs = Annotated[
    Path | None,
    typer.Option(
        "--scratch",
        metavar="DIR",
        help="Where jobs had their scratch on this machine.  [default: the temporary directory, "
        "and a service's own]",
        show_default=False,
    ),
]


def gc(
    bucket: options.BucketUri,
    older_than: OlderThan = None,
    job: OnlyJob = None,
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove the files that are listed.")
    ] = False,
    all_uploads: Annotated[
        bool,
        typer.Option(
            "--all-uploads", help="With --remove: unfinished uploads that are not dsort's, too."
        ),
    ] = False,
    scratch: ScratchOfJobs = None,
    root: options.Root = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """List the files that interrupted jobs left in a bucket and in scratch on this machine; with
    --remove, remove them. Files of a running job are never removed.

    \b
    Examples:
      dsort gc shuffled
      dsort gc s3://shuffled --older-than 7d --remove
      dsort gc shuffled --job 20260131-235959-4f2a9c --remove
    """
    if older_than is None:
        older_than = "24h" if job is None else "0s"
    older_than_s = duration_s(older_than, "--older-than")
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
    if as_json:
        entries = [asdict(each) | {"removed": each in gone} for each in old]
        output.write_json({"bucket": opened.uri, "garbage": entries})
    elif old:
        output.write(_table(old, gone))
        left = len(old) - len(gone)
        if not remove:
            output.inform("nothing was removed: --remove does it")
        elif left:
            output.inform(f"{output.count(left, 'thing')} of these were left as they are")
    else:
        what = f"older than {older_than}" if job is None else f"of a dead job {job}"
        output.inform(f"no garbage {what} in {output.place(opened.uri)}")
    if younger := len(found) - len(old):
        output.inform(f"{younger:,} more younger than {older_than}")
    for error in errors[1:]:
        output.warn(error.message)
    if errors:
        raise errors[0]


def _remove(
    bucket: Bucket, doomed: Sequence[Garbage], root: Path | None
) -> tuple[list[Garbage], list[DsortError]]:
    """Remove all that can be removed. Returns (what was removed, why the rest was not)."""
    from dsort.job.gc import remove_garbage

    gone: list[Garbage] = []
    errors: list[DsortError] = []
    in_use: set[str] = set()
    for each in doomed:
        if each.job_id in in_use:
            continue
        try:
            remove_garbage(bucket, each, opened=opener(root))
        except DsortError as error:
            errors.append(error)
            in_use |= {each.job_id} - {""}
        else:
            gone.append(each)
    return gone, errors


def _table(found: Sequence[Garbage], gone: Sequence[Garbage]) -> str:
    rows = [
        (
            each.kind,
            output.age(each.age_s),
            output.number(each.objects),
            output.size(each.size_bytes),
            output.printable(each.where),
            _what(each, gone=each in gone),
        )
        for each in found
    ]
    return output.table(("KIND", "AGE", "FILES", "SIZE", "WHERE", "WHAT"), rows, right="lrrrl")


def _what(each: Garbage, *, gone: bool) -> str:
    if gone:
        return f"removed: {each.what}"
    return each.what + (f"; go on with `dsort resume {each.job_id}`" if each.resumable else "")
