"""The pages of docs/reference/, written from what the program says of itself: the JSON Schema of a
spec, the options of the command line, the OpenAPI document of the service."""

from __future__ import annotations

from docs.generate.cli_page import cli_page
from docs.generate.rest_page import rest_page, schedule_page
from docs.generate.sources import command_line, exit_codes, openapi_document, spec_schema
from docs.generate.spec_page import spec_page

__all__ = ["pages"]


def pages() -> dict[str, str]:
    """Every generated page: its path under docs/, and its text."""
    document = openapi_document()
    return {
        "reference/spec.md": spec_page(spec_schema()),
        "reference/schedule.md": schedule_page(document),
        "reference/cli.md": cli_page(command_line(), exit_codes()),
        "reference/rest.md": rest_page(document),
    }
