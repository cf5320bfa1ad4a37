"""``dsort remove``: write the shards of a result again without some records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from dsort.cli import options, output
from dsort.cli.append import Dataset, refuse_moved
from dsort.cli.find import find_job
from dsort.cli.parameters import Option
from dsort.cli.progress import make_reporter
from dsort.cli.run import run_options
from dsort.cli.stopping import stoppable

if TYPE_CHECKING:
    from dsort.amendments import Removal

__all__ = ["remove"]


def remove(
    dataset: Dataset,
    keys: Annotated[
        Path,
        Option(
            "--keys",
            metavar="FILE",
            help="The file with the keys of the records, one a line.",
        ),
    ],
    bucket: options.JobBucket = None,
    root: options.Root = None,
    *,
    run: options.RunArguments,
    progress: options.ProgressOption = "auto",
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Remove records from a result. Only the shards that hold these records are written again.

    The rewritten shards and a new manifest get their names in one commit. The command reports keys
    that no record has.

    \b
    Examples:
      dsort remove shuffled --keys takedown.txt
      dsort remove s3://data/all --keys takedown.txt && dsort verify s3://data/all
    """
    found = find_job(dataset, bucket=bucket, root=root, finished=True)
    refuse_moved(found)
    as_given = run_options(run, root=root, overwrite=False)
    from dsort import api

    with make_reporter(progress) as reporter, stoppable(reporter) as stop:
        done = api.remove(
            found.read(),
            keys,
            place=found.bucket_uri,
            options=as_given,
            on_event=reporter,
            stop=stop,
        )
    if as_json:
        output.write_json(done.to_dict())
        return
    output.write(_shown(done))
    for key in done.found.missing:
        output.warn(f"no record has the key {output.printable(key)}")


def _shown(done: Removal) -> str:
    if done.job is None:
        return "no record has one of these keys: nothing was done"
    return output.fields(
        [
            ("job", f"{done.job.job_id} finished"),
            ("result", output.place(done.job.output_uri)),
            ("manifest", output.printable(done.job.manifest_name or "")),
            ("removed", output.count(done.found.records, "record")),
            ("written", f"{output.count(done.job.output_shards, 'shard')} again"),
            ("not found", output.count(len(done.found.missing), "key")),
        ]
    )
