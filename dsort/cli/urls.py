"""``dsort urls``: the addresses of shards at a service, for readers over HTTP."""

from __future__ import annotations

import shlex
from typing import Annotated, Final
from urllib.parse import quote

import click

from dsort.cli import options, output
from dsort.cli.parameters import Argument, Option
from dsort.cli.remote import connected, shards_there
from dsort.errors import SpecError, SpecProblem

__all__ = ["urls"]

_CURL: Final = 'pipe:curl -fsSL --retry 9 -H "Authorization: Bearer $DSORT_TOKEN" '


def urls(
    context: click.Context,
    template: Annotated[
        str,
        Argument(
            metavar="TEMPLATE",
            help="The shards, as in images/train-{000..099}.tar or s3://data/x-{0..9}.tar.",
        ),
    ],
    transform: Annotated[
        str | None,
        Option(
            "--use",
            metavar="NAME[@N]",
            help="A named transform for the shards. Without @N: the transform's newest version.",
        ),
    ] = None,
    pipe: Annotated[
        bool,
        Option(
            "--pipe",
            help="For webdataset: print pipe: URLs, in which curl sends the token in DSORT_TOKEN.",
        ),
    ] = False,
    braces: Annotated[
        bool,
        Option("--braces", help="Print one URL, with the range that webdataset expands."),
    ] = False,
    as_json: options.AsJson = False,
    *,
    service: options.Service,
    debug: options.Debug = False,
) -> None:
    """Print the URLs of shards at a service with --aistore, one a line. The URLs contain no token.

    \b
    Examples:
      dsort urls "images/train-{000..099}.tar" --use resize
      dsort urls "s3://data/train-{000..099}.tar" --pipe --braces
    """
    bucket, names = shards_there(template, "TEMPLATE")
    if braces and "{" not in names:
        text = "has no range in braces, as {000..099}"
        raise SpecError([SpecProblem("TEMPLATE", text, "leave --braces out")])
    listed = [names] if braces else _expanded(names)
    with connected(context) as client:
        base = f"{client.url}/v1/objects/{quote(bucket, safe='')}"
        query = ""
        if transform is None:
            next(client.transforms.list(), None)  # fails at a service without the routes of objects
        else:
            found = client.transforms.get(transform)
            query = f"?transform={found['name']}@{found['version']}"
    made = [f"{base}/{quote(name, safe='/{}')}{query}" for name in listed]
    if pipe:
        made = [f"{_CURL}{shlex.quote(url)}" for url in made]
    if as_json:
        output.write_json(made)
    else:
        for each in made:
            output.write(each)


def _expanded(names: str) -> list[str]:
    from dsort.containers.registry import DEFAULT_EXTENSION
    from dsort.naming.inputs import expand_inputs

    try:
        return list(expand_inputs(names, DEFAULT_EXTENSION))
    except ValueError as error:
        raise SpecError([SpecProblem("TEMPLATE", str(error))]) from None
