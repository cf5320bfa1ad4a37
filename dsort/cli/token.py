"""``dsort token``: who may use a service. Works on its database, whether it runs or not."""

from __future__ import annotations

import getpass
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dsort.cli import options, output
from dsort.cli.options import duration_s
from dsort.errors import SpecError, SpecProblem
from dsort.installation import need_extra

if TYPE_CHECKING:
    from dsort.service.database.engine import Database

__all__ = ["add", "ls", "rm"]

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="The name of the token. Its jobs belong to this name.")
]
Buckets = Annotated[
    list[str] | None,
    typer.Option(
        "--buckets",
        metavar="GLOB",
        help="Buckets that its jobs may read and write, as 's3://team-a*' or '/data/a/*': * is any "
        "text, slashes too, and ? any one character; may be repeated.  [default: all]",
        show_default=False,
    ),
]
InputBuckets = Annotated[
    list[str] | None,
    typer.Option(
        "--input-buckets", metavar="GLOB", help="... that they may read.", show_default=False
    ),
]
OutputBuckets = Annotated[
    list[str] | None,
    typer.Option(
        "--output-buckets", metavar="GLOB", help="... that they may write.", show_default=False
    ),
]


def add(
    name: Name,
    role: Annotated[
        Literal["viewer", "submitter", "admin"],
        typer.Option(
            "--role",
            help="A viewer looks; a submitter also submits, and changes its own jobs and "
            "schedules; an admin does everything.",
            show_default=False,
        ),
    ],
    buckets: Buckets = None,
    input_buckets: InputBuckets = None,
    output_buckets: OutputBuckets = None,
    expires: Annotated[
        str | None,
        typer.Option(
            "--expires",
            metavar="DURATION",
            help="The token expires after this, as in 90d.",
            show_default=False,
        ),
    ] = None,
    state_dir: options.StateDir = None,
    database: options.DatabaseUrl = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Make a token, and print it. It is printed once, and stored nowhere.

    \b
    Try it:
      dsort token add alice --role submitter --buckets 's3://team-a*'
      export DSORT_TOKEN=$(dsort token add nightly --role submitter)
    """
    expires_at = None if expires is None else time.time() + duration_s(expires, "--expires")
    inputs = _patterns(buckets, input_buckets, "--input-buckets")
    outputs = _patterns(buckets, output_buckets, "--output-buckets")
    with _database(state_dir, database) as opened:
        from dsort.service.security.audit import Audit
        from dsort.service.security.tokens import TokenStore

        audit, who = Audit(opened), _operator()
        store = TokenStore(opened)
        text = store.add(
            name,
            role,
            inputs,
            outputs,
            expires_at=expires_at,
            also=lambda connection, made: audit.note(
                connection, who, "", "token.add", name, made.details()
            ),
        )
        view = store.get(name).view()
    if as_json:
        output.write_json({**view, "token": text})
    else:
        output.inform(f"the token of {name} ({role}); it is not shown again:")
        output.write(text)


def ls(
    state_dir: options.StateDir = None,
    database: options.DatabaseUrl = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """List tokens, without their secrets."""
    with _database(state_dir, database) as opened:
        from dsort.service.security.tokens import TokenStore

        found = TokenStore(opened).list()
    if as_json:
        output.write_json([each.view() for each in found])
        return
    now_s = time.time()
    rows = []
    for each in found:
        expires = "never"
        if each.is_outdated:
            expires = "of an earlier dsort"
        elif each.expires_at is not None:
            over = each.expires_at <= now_s
            expires = "has expired" if over else _day(each.expires_at)
        globs = (" ".join(each.input_globs), " ".join(each.output_globs))
        row = (each.name, each.role, _day(each.created_at), expires, *globs)
        rows.append([output.printable(cell) for cell in row])
    output.write(output.table(("NAME", "ROLE", "CREATED", "EXPIRES", "READS", "WRITES"), rows))


def rm(
    name: Name,
    state_dir: options.StateDir = None,
    database: options.DatabaseUrl = None,
    debug: options.Debug = False,
) -> None:
    """Remove a token. It is refused from now on. Its jobs stay."""
    with _database(state_dir, database) as opened:
        from dsort.service.security.audit import Audit
        from dsort.service.security.tokens import TokenStore

        audit, who = Audit(opened), _operator()
        TokenStore(opened).remove(
            name, also=lambda connection: audit.note(connection, who, "", "token.remove", name)
        )
    output.inform(f"the token of {name} lets nobody in any more")


@contextmanager
def _database(state_dir: Path | None, url: str | None) -> Iterator[Database]:
    need_extra("service")
    from dsort.service.config import database_url_of, state_dir_of
    from dsort.service.database.engine import open_database

    with open_database(database_url_of(url, state_dir_of(state_dir))) as opened:
        yield opened


def _patterns(both: list[str] | None, own: list[str] | None, option: str) -> list[str]:
    if own is None:
        return both or ["*"]
    if both is not None:
        raise SpecError([SpecProblem(option, "does not go with --buckets", "name each once")])
    return own


def _operator() -> str:
    """Who gave the command, for the audit trail: an account of the machine, not a token."""
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):  # an account without a name
        return "cli"


def _day(at_s: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(at_s))
