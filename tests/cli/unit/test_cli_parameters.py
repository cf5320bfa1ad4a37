"""Verbs become commands: what the annotation of a parameter describes, and groups of options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import click
import pytest
from click.testing import CliRunner, Result

from dsort.cli import options
from dsort.cli.parameters import Argument, Command, Option, Without, command

GIVEN: dict[str, Any] = {}


def verb(
    context: click.Context,
    bucket: options.BucketUri,
    as_json: options.AsJson = False,
    *,
    run: Annotated[options.EngineArguments, Without(("move",))],
    service: options.ServiceOrHere,
) -> None:
    """A verb with groups."""
    GIVEN.update(bucket=bucket, as_json=as_json, run=run, service=service)
    GIVEN["params"] = context.params


def of_every_kind(
    words: Annotated[list[str], Argument(metavar="WORD...", help="Words.")],
    count: Annotated[int, Option("--count", "-c", metavar="N", min=1, max=9, help="How many.")] = 3,
    part: Annotated[float, Option(metavar="PART")] = 0.5,
    mode: Annotated[Literal["fast", "slow"] | None, Option(help="How.")] = None,
    form: Annotated[Literal["gnu", "pax"], Option(metavar="FORM", case_sensitive=False)] = "gnu",
    place: Annotated[Path | None, Option(metavar="DIR", envvar="PLACE", help="Where.")] = None,
    file: Annotated[Path | None, Option(metavar="FILE", exists=True, dir_okay=False)] = None,
    label: Annotated[list[str] | None, Option(metavar="TEXT")] = None,
    is_dry: Annotated[bool, Option("--dry", help="Nothing.")] = False,
    hidden_default: Annotated[str, Option(metavar="A", show_default=False)] = "some",
    hidden_variable: Annotated[
        str | None, Option(metavar="B", envvar="OTHER", show_envvar=False)
    ] = None,
) -> None:
    """A verb with options of every kind.

    \b
    Examples:
      of-every-kind a b
    """
    GIVEN.update(locals())


def invoke(of: Any, *args: str, **environment: str) -> Result:
    GIVEN.clear()
    return CliRunner().invoke(command("verb", of, Command), args, env=environment)


def given(*args: str, **environment: str) -> dict[str, Any]:
    assert invoke(of_every_kind, *args, **environment).exit_code == 0
    return GIVEN


def refused(*args: str) -> str:
    ended = invoke(of_every_kind, *args)
    assert (ended.exit_code, GIVEN) == (2, {})
    assert "None" not in ended.output
    return ended.output


def test_a_verb_gets_its_groups_whole_and_its_context() -> None:
    arguments = ["images", "--workers", "3", "--ray", "--server", "http://a", "--local"]
    assert invoke(verb, *arguments).exit_code == 0
    params = GIVEN.pop("params")
    assert {
        "bucket": "images",
        "as_json": False,
        "run": options.EngineArguments(workers=3, ray=True),
        "service": options.ServiceOrHere(server="http://a", local=True),
    } == GIVEN
    assert params["workers"] == 3


def test_a_field_may_be_left_out() -> None:
    text = invoke(verb, "--help").output
    assert "--scratch" in text
    assert "--move" not in text
    assert invoke(verb, "images", "--move", "map").exit_code == 2


def test_values_have_the_types_of_the_parameters() -> None:
    found = given("a", "b", "-c", "9", "--part", "1", "--place", "x", "--label", "l", "--dry")
    assert found["words"] == ["a", "b"]
    assert (found["count"], found["part"], found["place"]) == (9, 1.0, Path("x"))
    assert (found["label"], found["is_dry"]) == (["l"], True)
    assert given("a", "--label", "l", "--label", "m")["label"] == ["l", "m"]
    assert given("a", "--form", "PAX")["form"] == "pax"


def test_an_environment_variable_sets_an_option() -> None:
    assert given("a", PLACE="there")["place"] == Path("there")
    assert given("a", "--place", "here", PLACE="there")["place"] == Path("here")
    assert given("a", PLACE="")["place"] is None
    assert given("a", OTHER="other")["hidden_variable"] == "other"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "Missing argument 'WORD...'"),
        (["a", "--count", "0"], "0 is not in the range 1<=x<=9"),
        (["a", "--count", "x"], "'x' is not a valid integer."),
        (["a", "--count"], "'--count' requires an argument"),
        (["a", "--part", "x"], "'x' is not a valid float"),
        (["a", "--mode", "FAST"], "'FAST' is not one of 'fast', 'slow'"),
        (["a", "--file", "nowhere"], "File 'nowhere' does not exist"),
        (["a", "--file", "/"], "File '/' is a directory"),
        (["a", "--dry=1"], "'--dry' does not take a value"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(args: list[str], said: str) -> None:
    assert said in refused(*args)


def test_help_lists_arguments_and_options_with_defaults_variables_and_bounds() -> None:
    assert (
        invoke(of_every_kind, "--help").output
        == """\
Usage: verb [OPTIONS] WORD...

  A verb with options of every kind.

  Examples:
    of-every-kind a b

Arguments:
  WORD...  Words.  [required]

Options:
  -c, --count N        How many.  [default: 3; 1<=x<=9]
  --part PART          [default: 0.5]
  --mode <fast|slow>   How.
  --form FORM          [default: gnu]
  --place DIR          Where.  [env var: PLACE]
  --file FILE
  --label TEXT
  --dry                Nothing.
  --hidden-default A
  --hidden-variable B
  -h, --help           Show this message and exit.
"""
    )
