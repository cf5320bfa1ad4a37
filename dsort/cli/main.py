"""``dsort``: the list of verbs, and how a command runs and ends."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from dsort.cli import (
    cat,
    convert,
    exits,
    gc,
    gen_shards,
    log,
    ls,
    output,
    plan,
    report,
    resume,
    rm,
    schedule,
    schema,
    serve,
    show,
    start,
    stop,
    token,
    wait,
)
from dsort.cli import (
    inspect as inspect_shard,
)
from dsort.cli import validate as validate_verb
from dsort.cli import verify as verify_verb
from dsort.cli.overseer import is_for_ray, run_overseen
from dsort.errors import DsortError, JobStoppedError
from dsort.storage.process_limits import explain_limits

__all__ = ["app", "main"]

CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 80}


def _help_epilog() -> str:
    # \b keeps the lines of a paragraph as they are.
    lines = []
    for code, meaning in exits.exit_table():
        first, *rest = textwrap.wrap(meaning, 60)
        lines += [f"  {code:<13}  {first}", *(f"  {'':<13}  {line}" for line in rest)]
    return "\b\nExit codes:\n" + "\n".join(lines)


app = typer.Typer(
    name="dsort",
    add_completion=False,
    no_args_is_help=False,
    rich_markup_mode=None,
    context_settings=CONTEXT_SETTINGS,
    epilog=_help_epilog(),
)


@app.callback(invoke_without_command=True)
def dsort(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Shuffle, sort and reshard shards of training data (WebDataset and alike).

    \b
    Try it:
      dsort gen-shards "images/samples-{00..18}.tar" --fcount 100
      dsort start images shuffled -f '{"output_format": "shuffled-%d",
          "output_shard_size": "100KB", "algorithm": {"kind": "shuffle"}}'
      dsort ls shuffled
    """
    if version:
        from dsort.version import dsort_version

        output.write(f"dsort {dsort_version()}")
    elif context.invoked_subcommand is None:
        output.write(context.get_help())


_VERBS: Sequence[tuple[str, Callable[..., None], str]] = (
    ("start", start.start, "Run a job: shuffle, sort or reshard a bucket."),
    ("plan", plan.plan, "Show what a job would do; write nothing."),
    ("convert", convert.convert, "Write shards as shards of another container."),
    ("validate", validate_verb.validate, "Check a job spec."),
    ("schema", schema.schema, "Print the JSON Schema of a job spec."),
    ("show", show.show, "Show what a job did, or does."),
    ("report", report.report, "Write a job's page as one HTML file."),
    ("resume", resume.resume, "Resume a job that died."),
    ("stop", stop.stop, "Stop a running job."),
    ("gc", gc.gc, "List and remove what dead jobs left in a bucket."),
    ("verify", verify_verb.verify, "Check a job's result against its inputs."),
    ("ls", ls.ls, "List a bucket: names and sizes."),
    ("inspect", inspect_shard.inspect_shard, "Show what is in a shard, and what is odd about it."),
    ("cat", cat.cat, "Write the bytes of a shard, a record or a member."),
    ("gen-shards", gen_shards.gen_shards, "Write test shards."),
    ("serve", serve.serve, "Run the job service."),
    ("wait", wait.wait, "Wait for jobs of a service."),
    ("log", log.log, "Print the log of a service's job."),
    ("rm", rm.rm, "Remove jobs that are over from a service's history."),
)
_SCHEDULE_VERBS: Sequence[tuple[str, Callable[..., None], str]] = (
    ("add", schedule.add, "Add a schedule."),
    ("ls", schedule.ls, "List schedules."),
    ("show", schedule.show, "Show a schedule and what came of it."),
    ("pause", schedule.pause, "Let a schedule rest."),
    ("resume", schedule.resume, "Resume a schedule that is paused."),
    ("run", schedule.run, "Submit its job now."),
    ("rm", schedule.rm, "Remove a schedule."),
)
_TOKEN_VERBS: Sequence[tuple[str, Callable[..., None], str]] = (
    ("add", token.add, "Make a token, and print it."),
    ("ls", token.ls, "List tokens, without their secrets."),
    ("rm", token.rm, "Remove a token."),
)


def _add(group: typer.Typer, verbs: Sequence[tuple[str, Callable[..., None], str]]) -> None:
    for name, verb, in_short in verbs:
        group.command(name, short_help=in_short, context_settings=CONTEXT_SETTINGS)(verb)


def _add_group(
    name: str, in_short: str, verbs: Sequence[tuple[str, Callable[..., None], str]]
) -> None:
    group = typer.Typer(
        name=name,
        help=in_short,
        no_args_is_help=True,
        rich_markup_mode=None,
        context_settings=CONTEXT_SETTINGS,
    )
    _add(group, verbs)
    app.add_typer(group)


_add(app, _VERBS)
_add_group("schedule", "Jobs that a service submits at set times.", _SCHEDULE_VERBS)
_add_group("token", "Who may use a service: tokens.", _TOKEN_VERBS)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (default: that of the process), and return the exit code."""
    if argv is None:
        argv = sys.argv[1:]
        # NumPy would start threads for linear algebra, which dsort does not do; they would spin.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        sys.excepthook = exits.report_bug
        if is_for_ray(argv):
            return _reported(
                argv, lambda: run_overseen(lambda: _reported(argv, lambda: _run(argv)))
            )
    return _reported(argv, lambda: _run(argv))


def _reported(argv: Sequence[str], work: Callable[[], int]) -> int:
    """Run ``work``, print what it raises, and return the exit code."""
    output.prepare_streams()
    # An error may come before options are parsed, so these two are looked up in argv.
    as_json, debug = "--json" in argv, "--debug" in argv
    try:
        with explain_limits():
            return work()
    except typer.TyperException as mistake:
        context = getattr(mistake, "ctx", None)
        command = context.command_path if context else "dsort"
        return exits.report_usage(mistake.format_message(), command=command, as_json=as_json)
    except DsortError as failure:
        return exits.report_error(failure, as_json=as_json, debug=debug)
    except KeyboardInterrupt:
        stopped = JobStoppedError("stopped by SIGINT", signal_number=signal.SIGINT)
        return exits.report_error(stopped, as_json=as_json, debug=debug)
    except BrokenPipeError:
        if not output.reader_gone(sys.stdout):
            raise
        output.abandon_stdout()  # the reader has closed the pipe
        return 128 + signal.SIGPIPE


def _run(argv: Sequence[str]) -> int:
    name, args = "dsort", list(argv)
    command = typer.main.get_command(app)
    while args and (verb := getattr(command, "commands", {}).get(args[0])) is not None:
        # Call the verb directly: through a group, typer would load pydantic even for --help.
        name, args, command = f"{name} {args[0]}", args[1:], verb
    try:
        with command.make_context(name, args) as context:
            command.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    return 0
