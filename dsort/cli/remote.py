"""The way from a verb to a service: which one, as whom, and which options go with it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from dsort.cli import output
from dsort.cli.optional_install import need
from dsort.errors import SpecError, SpecProblem

if TYPE_CHECKING:
    from dsort.client import DsortClient, Job

__all__ = ["command_words", "connected", "found_jobs", "there"]

HERE_ONLY = (
    "root",
    "bucket",
    "scratch",
    "memory_max",
    "bandwidth_max",
    "move",
    "workers",
    "ray",
    "ray_address",
    "ray_resources",
    "ray_labels",
)
"""Parameters of verbs that say how a job runs here; a service decides that for its jobs."""

THERE_ONLY = ("wait", "priority", "labels", "token_file", "reason", "state", "owner")
"""Parameters of verbs that only a service makes something of."""


def there(context: typer.Context) -> bool:
    """Whether the command is for a service: ``--server`` or ``DSORT_SERVER``, and no ``--local``.

    ``SpecError`` that names all options that do not go with that.
    """
    server, here = context.params.get("server"), context.params.get("local")
    if server and here and _given(context, "server"):
        raise SpecError("--server and --local contradict each other")
    remote = bool(server) and not here
    unfit = HERE_ONLY if remote else THERE_ONLY
    words = (
        f"is for jobs that run here, not at {server}"
        if remote
        else "is for jobs of a service: name it with --server"
    )
    problems = [SpecProblem(option, words) for name in unfit if (option := _given(context, name))]
    if problems:
        hint = "--local runs it here" if remote and not _given(context, "server") else ""
        raise SpecError(problems, hint=hint)
    return remote


@contextmanager
def connected(context: typer.Context) -> Iterator[DsortClient]:
    """The service that the command is for. ``SpecError`` if none is named."""
    need("client")
    server = context.params.get("server")
    if not server:
        raise SpecError(
            "which service? none is named",
            hint="give --server URL, or set DSORT_SERVER; `dsort serve` starts one",
        )
    from dsort.client import DsortClient

    with DsortClient(
        server, token_file=context.params.get("token_file"), on_wait=output.inform
    ) as client:
        yield client


def command_words(context: typer.Context, verb: str, *args: str) -> str:
    """A command for the user to type, for the same service: `` `dsort stop JOB` ``."""
    words = ["dsort", verb, *args]
    for name, option in (("server", "--server"), ("token_file", "--token-file")):
        if _given(context, name):
            words += [option, str(context.params[name])]
    return f"`{shlex.join(words)}`"


def found_jobs(client: DsortClient, jobs: Iterable[str]) -> list[Job]:
    """The jobs that ids, or beginnings of ids, mean; each once."""
    found = {job.job_id: job for job in map(client.find, jobs)}
    return list(found.values())


def _given(context: typer.Context, name: str) -> str:
    """The option that sets parameter ``name``, if it is on the command line; else ""."""
    source = context.get_parameter_source(name)
    if source is None or source.name != "COMMANDLINE":
        return ""
    option = next(each for each in context.command.params if each.name == name)
    return str(option.opts[0])
