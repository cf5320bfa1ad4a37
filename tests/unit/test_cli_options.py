"""Groups of options: a verb has each of their fields as an option of its own."""

from __future__ import annotations

import typer
from typer.testing import CliRunner

from dsort.cli import options

GIVEN: list[object] = []


@options.grouped(without=("move",))
def verb(
    context: typer.Context,
    bucket: options.BucketUri,
    as_json: options.AsJson = False,
    *,
    run: options.RunArguments,
    service: options.ServiceOrHere,
) -> None:
    """A verb."""
    GIVEN[:] = [bucket, as_json, run, service]


APP = typer.Typer(rich_markup_mode=None)
APP.command()(verb)


def test_a_verb_gets_its_groups_whole() -> None:
    arguments = ["images", "--workers", "3", "--ray", "--server", "http://a", "--local"]
    assert CliRunner().invoke(APP, arguments).exit_code == 0
    assert [
        "images",
        False,
        options.RunArguments(workers=3, ray=True),
        options.ServiceOrHere(server="http://a", local=True),
    ] == GIVEN


def test_what_is_not_given_has_the_default_of_the_group() -> None:
    assert CliRunner().invoke(APP, ["images"]).exit_code == 0
    assert GIVEN[2:] == [options.RunArguments(), options.ServiceOrHere()]


def test_a_field_may_be_left_out() -> None:
    text = CliRunner().invoke(APP, ["--help"]).output
    assert "--scratch" in text
    assert "--move" not in text
    assert CliRunner().invoke(APP, ["images", "--move", "map"]).exit_code == 2
