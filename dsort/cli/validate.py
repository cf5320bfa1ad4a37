"""``dsort validate``: is a job spec in order?"""

from __future__ import annotations

from dsort.cli import options, output
from dsort.cli.jobs import read_spec

__all__ = ["validate"]


def validate(
    spec: options.SpecSource,
    src: options.Source = None,
    dst: options.Destination = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Check a job spec without looking at any data. All problems are told at once.

    With --json it prints the spec in today's names, with every default written out.
    """
    job = read_spec(spec, src, dst, warn=output.warn)
    if as_json:
        output.write_json(job.canonical())
    else:
        output.write("the spec is in order")
