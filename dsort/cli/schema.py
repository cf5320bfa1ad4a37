"""``dsort schema``: the JSON Schema of a job spec."""

from __future__ import annotations

from dsort.cli import options, output

__all__ = ["schema"]


def schema(debug: options.Debug = False) -> None:
    """Print the JSON Schema of a job spec, for editors and other tools."""
    from dsort.spec.schema import schema as job_schema

    output.write_json(job_schema())
