"""``dsort spec``: checks a job spec, prints the JSON Schema of job specs."""

from __future__ import annotations

import click

from dsort.cli import options, output
from dsort.cli.remote import connected, is_remote
from dsort.cli.run import read_fields, read_spec

__all__ = ["check", "schema"]


def check(
    context: click.Context,
    spec: options.SpecSource,
    src: options.Source = None,
    dst: options.Destination = None,
    as_json: options.AsJson = False,
    *,
    service: options.ServiceOrHere,
    debug: options.Debug = False,
) -> None:
    """Check a job spec without looking at any data. All problems are printed at once. With
    a service: also check whether the service would accept the spec.

    With --json, print the spec with the current names of fields and with every default.
    """
    if is_remote(context):
        with connected(context) as client:
            found = client.validate(read_fields(spec, src, dst))
        for warning in found.warnings:
            output.warn(warning)
        canonical = found.spec
    else:
        canonical = read_spec(spec, src, dst, warn=output.warn).canonical()
    if as_json:
        output.write_json(canonical)
    else:
        output.write("the spec is valid")


def schema(
    context: click.Context,
    as_json: options.AsJson = False,
    *,
    service: options.ServiceOrHere,
    debug: options.Debug = False,
) -> None:
    """Print the JSON Schema of a job spec, for editors and other tools. With a service: print the
    schema of the service. The output is always JSON, with --json and without."""
    if service.server and not service.local:
        with connected(context) as client:
            output.write_json(client.schema())
        return
    from dsort.spec.schema import schema as job_schema

    output.write_json(job_schema())
