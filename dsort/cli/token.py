"""``dsort token``: the users of a service. Without ``--server`` the command opens the database of
the service, whether the service runs or not."""

from __future__ import annotations

import getpass
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click

from dsort.cli import options, output
from dsort.cli.parameters import Argument, Option
from dsort.cli.remote import connected, is_remote
from dsort.durations import parse_moment
from dsort.errors import SpecError, SpecProblem
from dsort.installation import need_extra

if TYPE_CHECKING:
    from dsort.service.security.audit import Audit
    from dsort.service.security.tokens import TokenStore

Name = Annotated[
    str,
    Argument(
        metavar="NAME",
        help="The name of the token. Jobs that are submitted with the token belong to this name.",
    ),
]
Buckets = Annotated[
    list[str] | None,
    Option(
        "--buckets",
        metavar="BUCKET",
        help="Buckets that the token's jobs may read and write, as in s3://team-a or /data/a; may "
        "be repeated. With * at the end, BUCKET stands for all buckets whose URIs begin with the "
        "text before the *, as in 's3://team-a/*'.  [default: all]",
    ),
]
InputBuckets = Annotated[
    list[str] | None,
    Option(
        "--input-buckets",
        metavar="BUCKET",
        help="Buckets that the token's jobs may read; may be repeated.",
    ),
]
OutputBuckets = Annotated[
    list[str] | None,
    Option(
        "--output-buckets",
        metavar="BUCKET",
        help="Buckets that the token's jobs may write; may be repeated.",
    ),
]
Role = Annotated[
    Literal["viewer", "submitter", "admin"],
    Option(
        "--role",
        help="A viewer only reads. A submitter also submits jobs, and changes its own "
        "jobs and schedules. An admin may do everything.",
    ),
]
Expires = Annotated[
    str | None,
    Option(
        "--expires",
        metavar="DURATION",
        help="The time after which the token expires, as in 90d.",
    ),
]


def add(
    context: click.Context,
    name: Name,
    role: Role,
    buckets: Buckets = None,
    input_buckets: InputBuckets = None,
    output_buckets: OutputBuckets = None,
    expires: Expires = None,
    state_dir: options.StateDir = None,
    database: options.DatabaseUrl = None,
    as_json: options.AsJson = False,
    *,
    service: options.ServiceOrHere,
    debug: options.Debug = False,
) -> None:
    """Make a token, and print the token. The token is printed once, and stored nowhere.

    \b
    Try it:
      dsort token add alice --role submitter --buckets 's3://team-a/*'
      export DSORT_TOKEN=$(dsort token add nightly --role submitter)
    """
    expires_in_s = None if expires is None else options.duration_s(expires, "--expires")
    inputs = _buckets(buckets, input_buckets, "--input-buckets")
    outputs = _buckets(buckets, output_buckets, "--output-buckets")
    if is_remote(context):
        with connected(context) as client:
            made = client.tokens.add(
                name,
                role,
                input_buckets=inputs,
                output_buckets=outputs,
                expires_in_s=expires_in_s,
            )
        _write_made(made, as_json=as_json)
        return
    expires_at = None if expires_in_s is None else time.time() + expires_in_s
    who = _operator()
    with _opened(state_dir, database) as (store, audit):
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
    _write_made({**view, "token": text}, as_json=as_json)


def _write_made(made: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        output.write_json(made)
    else:
        output.inform(f"the token of {made['name']} ({made['role']}); it is not shown again:")
        output.write(made["token"])


def ls(
    context: click.Context,
    state_dir: options.StateDir = None,
    database: options.DatabaseUrl = None,
    as_json: options.AsJson = False,
    *,
    service: options.ServiceOrHere,
    debug: options.Debug = False,
) -> None:
    """List tokens, without their secrets."""
    if is_remote(context):
        with connected(context) as client:
            views = client.tokens.list()
    else:
        with _opened(state_dir, database) as (store, _):
            views = [each.view() for each in store.list()]
    rows = (
        (
            each["name"],
            each["role"],
            each["created_at"][:10],
            _expires(each),
            " ".join(each["input_buckets"]),
            " ".join(each["output_buckets"]),
        )
        for each in views
    )
    header = ("NAME", "ROLE", "CREATED", "EXPIRES", "READS", "WRITES")
    output.write_rows(views, header, rows, as_json=as_json)


def rm(
    context: click.Context,
    name: Name,
    state_dir: options.StateDir = None,
    database: options.DatabaseUrl = None,
    as_json: options.AsJson = False,
    *,
    service: options.ServiceOrHere,
    debug: options.Debug = False,
) -> None:
    """Remove a token. The service refuses the token from now on. The jobs of the token stay."""
    if is_remote(context):
        with connected(context) as client:
            client.tokens.remove(name)
    else:
        who = _operator()
        with _opened(state_dir, database) as (store, audit):
            store.remove(
                name, also=lambda connection: audit.note(connection, who, "", "token.remove", name)
            )
    if as_json:
        output.write_json({"name": name, "removed": True})
    else:
        output.inform(f"the token of {name} is removed")


@contextmanager
def _opened(state_dir: Path | None, url: str | None) -> Iterator[tuple[TokenStore, Audit]]:
    """The tokens and the audit trail in the database of a service on this machine."""
    need_extra("service")
    from dsort.service.config import database_url_of, state_dir_of
    from dsort.service.database.engine import open_database
    from dsort.service.security.audit import Audit
    from dsort.service.security.tokens import TokenStore

    with open_database(database_url_of(url, state_dir_of(state_dir))) as database:
        yield TokenStore(database), Audit(database)


def _buckets(both: list[str] | None, own: list[str] | None, option: str) -> list[str]:
    if own is None:
        return both or ["*"]
    if both is not None:
        raise SpecError(
            [SpecProblem(option, "cannot be combined with --buckets", "name each once")]
        )
    return own


def _operator() -> str:
    """The user who ran the command, for the audit trail: an account of the machine, not a token."""
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):  # an account without a name
        return "cli"


def _expires(view: Mapping[str, Any]) -> str:
    at = view["expires_at"]
    if at is None:
        return "never"
    return "has expired" if parse_moment(str(at)) <= datetime.now(UTC) else str(at)[:10]
