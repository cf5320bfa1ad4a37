"""The pages of docs/reference/, written from what the program says of itself: the JSON Schema of a
spec, the checks of specs, the options of the command line, the OpenAPI document of the service. And
the specs that the service's page begins with, from specs/."""

from __future__ import annotations

from docs.generate.cli_page import cli_page
from docs.generate.combinations_page import combinations_page
from docs.generate.man_pages import man_pages
from docs.generate.rest_page import rest_page, schedule_page
from docs.generate.sources import command_line, exit_codes, openapi_document, spec_schema
from docs.generate.spec_page import spec_page
from docs.generate.templates_script import TEMPLATES_SCRIPT, templates_script

__all__ = ["MAN", "manuals", "pages", "scripts"]

MAN = "docs/man/man1"


def pages() -> dict[str, str]:
    """Every generated page: its path under docs/, and its text."""
    document = openapi_document()
    return {
        "reference/spec.md": spec_page(spec_schema()),
        "reference/combinations.md": combinations_page(),
        "reference/schedule.md": schedule_page(document),
        "reference/cli.md": cli_page(command_line(), exit_codes()),
        "reference/rest.md": rest_page(document),
    }


def scripts() -> dict[str, str]:
    """Every generated script: its path in the repository, and its text."""
    return {TEMPLATES_SCRIPT: templates_script()}


def manuals() -> dict[str, str]:
    """Every man page: its path in the repository, and its text."""
    found = man_pages(command_line(), exit_codes())
    return {f"{MAN}/{name}": text for name, text in found.items()}
