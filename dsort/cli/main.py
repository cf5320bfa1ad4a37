"""``dsort``: the list of verbs, and how a command runs and ends."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Annotated, Any, Final, Literal, NamedTuple

import click

from dsort.cli import completion, exits, output
from dsort.cli.parameters import CONTEXT_SETTINGS, Command, Option, command, naming_flags, parameter
from dsort.cli.process import is_for_ray, own_process, run_overseen
from dsort.errors import DsortError, JobStoppedError
from dsort.installation import COMMAND, is_part, missing_part
from dsort.storage.process_limits import explain_limits
from dsort.version import dsort_version

_TOO_MANY: Final = "unexpected extra argument"
LEVEL_DEFAULT: Final = "warning"
LEVEL: Final = "log_level"
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"] | None,
    Option(
        "--log-level",
        metavar="LEVEL",
        envvar="DSORT_LOG",
        help="Write log lines of this level and above to stderr: debug, info, warning or error.  "
        "[default: warning]",
    ),
]


def add_log_level(command: click.Command) -> None:
    """Give ``command`` the option ``--log-level``, in front of ``--debug``. A command that has no
    ``--debug``, or sets up its log itself, stays as it is."""
    names = [each.name for each in command.params]
    verb = command.callback
    if "debug" not in names or LEVEL in names or verb is None:
        return
    command.params.insert(names.index("debug"), parameter(LEVEL, LogLevel, None))

    def with_lines(**given: Any) -> None:
        from dsort.log_lines import lines_on_stderr

        with lines_on_stderr(given.pop(LEVEL) or LEVEL_DEFAULT):
            verb(**given)

    command.callback = with_lines


def _help_epilog() -> str:
    # \b keeps the line breaks of a paragraph.
    lines = []
    for code, meaning in exits.exit_table():
        first, *rest = textwrap.wrap(meaning, 60)
        lines += [f"  {code:<13}  {first}", *(f"  {'':<13}  {line}" for line in rest)]
    return "\b\nExit codes:\n" + "\n".join(lines)


def dsort(
    context: click.Context,
    version: Annotated[bool, Option("--version", help="Show the version and exit.")] = False,
    install_completion: Annotated[
        bool, Option("--install-completion", help="Install completion for the current shell.")
    ] = False,
    show_completion: Annotated[
        bool,
        Option(
            "--show-completion",
            help="Show completion for the current shell, to copy it or customize the installation.",
        ),
    ] = False,
) -> None:
    """Shuffle, sort and reshard shards of training data (WebDataset and similar formats).

    \b
    Try it:
      dsort gen-shards "images/samples-{00..18}.tar" --fcount 100 --fsize 10KB
      dsort shuffle images shuffled --shard-size 5MB
      dsort ls shuffled
    """
    if version:
        output.write(f"{COMMAND} {dsort_version()}")
    elif install_completion or show_completion:
        if install_completion:
            shell, path = completion.install(context.command)
            output.write(f"{shell} completion installed in {path}")
            output.write("Completion will take effect once you restart the terminal")
        else:
            output.write(completion.script(context.command).strip())
    elif context.invoked_subcommand is None:
        output.write(context.get_help())


class _Verb(NamedTuple):
    """One command. ``function``: its module below ``dsort.cli``, and the name in that module. A
    module is loaded only when its verb is used: loading all takes as long as a small job."""

    name: str
    function: str
    in_short: str

    def load(self) -> Callable[..., None]:
        """The function of the verb."""
        module, _, function = self.function.partition(":")
        found: Callable[..., None] = getattr(import_module(f"dsort.cli.{module}"), function)
        return found

    def stand_in(self) -> Callable[..., None]:
        """A function without parameters, which is enough for a list of verbs."""
        return lambda: None


_SECTIONS: Final[Mapping[str, Sequence[_Verb]]] = {
    "Everyday": (
        _Verb("shuffle", "reorder:shuffle", "Shuffle the records of a bucket into new shards."),
        _Verb("sort", "reorder:sort", "Sort the records of a bucket into new shards."),
        _Verb("reshard", "reorder:reshard", "Write records into shards of another size."),
        _Verb("convert", "reorder:convert", "Write shards as shards of another container."),
        _Verb("ingest", "ingest:ingest", "Make shuffled shards from loose files."),
        _Verb("transform", "transform:transform", "Change the records of a bucket."),
        _Verb("append", "amend:append", "Add records to a result."),
        _Verb("remove", "amend:remove", "Remove records from a result."),
        _Verb("materialize", "reorder:materialize", "Make the shards of a view."),
    ),
    "Jobs": (
        _Verb("start", "start:start", "Run the job of a spec."),
        _Verb("plan", "start:plan", "Show what a job would do; write nothing."),
        _Verb("verify", "result:verify", "Check a result against its inputs."),
        _Verb("show", "show:show", "Show a job, or list jobs."),
        _Verb("log", "jobs:log", "Print the log of a service's job."),
        _Verb("wait", "jobs:wait", "Wait for jobs of a service."),
        _Verb("stop", "jobs:stop", "Stop a running job."),
        _Verb("resume", "jobs:resume", "Resume a job that was interrupted."),
        _Verb("gc", "gc:gc", "List and remove files that interrupted jobs left."),
        _Verb("rm", "jobs:rm", "Remove ended jobs from the history of a service."),
    ),
    "Look": (
        _Verb("ls", "look:ls", "List a bucket: names and sizes."),
        _Verb("inspect", "look:inspect_shard", "Show the records and faults of a shard."),
        _Verb("cat", "look:cat", "Write the bytes of a shard, a record or a member."),
        _Verb("where", "result:where", "Show where a record was, and where the record is now."),
        _Verb("urls", "look:urls", "Print the URLs of shards at a service."),
    ),
    "Service": (_Verb("serve", "serve:serve", "Run the job service."),),
    "Tools": (_Verb("gen-shards", "gen_shards:gen_shards", "Write test shards."),),
}
_VERBS: Final = tuple(verb for verbs in _SECTIONS.values() for verb in verbs)


class _Group(NamedTuple):
    """Commands of two words. ``section``: the section in the list of commands."""

    section: str
    in_short: str
    verbs: Sequence[_Verb]


_GROUPS: Final[Mapping[str, _Group]] = {
    "schedule": _Group(
        "Service",
        "Jobs that a service submits at set times.",
        (
            _Verb("add", "schedule:add", "Add a schedule."),
            _Verb("ls", "schedule:ls", "List schedules."),
            _Verb("show", "schedule:show", "Show a schedule and its runs."),
            _Verb("pause", "schedule:pause", "Pause a schedule."),
            _Verb("resume", "schedule:resume", "Resume a schedule that is paused."),
            _Verb("run", "schedule:run", "Submit the job of a schedule now."),
            _Verb("rm", "schedule:rm", "Remove a schedule."),
        ),
    ),
    "token": _Group(
        "Service",
        "Tokens of the users of a service.",
        (
            _Verb("add", "token:add", "Make a token, and print the token."),
            _Verb("ls", "token:ls", "List tokens, without their secrets."),
            _Verb("rm", "token:rm", "Remove a token."),
        ),
    ),
    "transforms": _Group(
        "Service",
        "Transforms with names and versions.",
        (
            _Verb("add", "transform:add", "Add a named transform, or its next version."),
            _Verb("ls", "transform:ls", "List transforms with their versions."),
            _Verb("show", "transform:show", "Print a transform."),
            _Verb("rm", "transform:rm", "Remove a transform, or one version of a transform."),
        ),
    ),
    "view": _Group(
        "Look",
        "Views for other programs.",
        (_Verb("export", "result:export", "List the ranges of a view for other programs."),),
    ),
    "spec": _Group(
        "Tools",
        "Check job specs, and print their schema.",
        (
            _Verb("check", "start:check", "Check a job spec."),
            _Verb("schema", "start:schema", "Print the JSON Schema of a job spec."),
        ),
    ),
}


class _Commands(click.Group):
    """A list of commands, in the order in which they were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """See ``click.Group``."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """See ``click.Group``. The error suggests names: some versions of click suggest none."""
        if args[0] not in self.commands and not ctx.resilient_parsing:
            from difflib import get_close_matches

            if found := get_close_matches(args[0], self.commands):
                words = ", ".join(map(repr, found))
                ctx.fail(f"No such command {args[0]!r}. Did you mean {words}?")
        return super().resolve_command(ctx, args)


class _Sections(_Commands):
    """The list of commands, in sections."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See ``click.Group``: one list for each section."""
        for title, verbs in _SECTIONS.items():
            groups = [(name, each.in_short) for name, each in _GROUPS.items()]
            rows = [(verb.name, verb.in_short) for verb in verbs]
            rows += [row for row in groups if _GROUPS[row[0]].section == title]
            with formatter.section(title):
                formatter.write_dl(rows)


_Loader = Callable[[_Verb], Callable[..., None]]


def whole_app(load: _Loader = _Verb.load) -> click.Group:
    """The command line with all its verbs. ``load``: returns the function of a verb."""
    app = command(
        COMMAND,
        dsort,
        _Sections,
        invoke_without_command=True,
        subcommand_metavar="COMMAND [ARGS]...",
        epilog=_help_epilog(),
    )
    for verb in _VERBS:
        app.add_command(_of_verb(verb, load))
    for name in _GROUPS:
        app.add_command(_group(name, load))
    return app


def _group(name: str, load: _Loader) -> click.Group:
    _, in_short, verbs = _GROUPS[name]
    group = _Commands(name, help=in_short, no_args_is_help=True, context_settings=CONTEXT_SETTINGS)
    for verb in verbs:
        group.add_command(_of_verb(verb, load))
    return group


def _of_verb(verb: _Verb, load: _Loader) -> click.Command:
    made = command(verb.name, load(verb), Command, short_help=verb.in_short)
    add_log_level(made)
    return made


def _command(args: list[str]) -> tuple[str, list[str], click.Command]:
    """(the name, the arguments, the command) of a command line. Loads the function of one verb, and
    never those of the others."""
    words = [COMMAND]
    verbs: Sequence[_Verb] = _VERBS
    app: click.Command | None = None
    if args and args[0] in _GROUPS:
        app, verbs = _group(args[0], _Verb.stand_in), _GROUPS[args[0]].verbs
        words.append(args.pop(0))
    verb = next((each for each in verbs if each.name in args[:1]), None)
    if verb is not None:
        app = _of_verb(verb, _Verb.load)
        words.append(args.pop(0))
    if app is None:
        app = whole_app(_Verb.stand_in)
    return " ".join(words), args, app


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (default: that of the process), and return the exit code."""
    if argv is None:
        argv = sys.argv[1:]
        # NumPy would start threads for linear algebra, which dsort does not use; they would spin.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        # Arrow's jemalloc would start a thread, too, though it is not used. Workers must be forks
        # of a process with a single thread.
        os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
        sys.excepthook = exits.report_bug
        own_process()
        if is_for_ray(argv):
            return _reported(
                argv, lambda: run_overseen(lambda: _reported(argv, lambda: _run(argv)))
            )
    return _reported(argv, lambda: _run(argv))


def _reported(argv: Sequence[str], work: Callable[[], int]) -> int:
    """Run ``work``, print the error that it raises, and return the exit code."""
    output.prepare_streams()
    # An error may occur before options are parsed, so these two are looked up in argv.
    as_json, debug = "--json" in argv, "--debug" in argv
    try:
        with explain_limits():
            return work()
    except click.ClickException as mistake:
        context = getattr(mistake, "ctx", None)
        command = context.command_path if context else COMMAND
        hint = f"see `{command} --help`"
        message = mistake.format_message()
        if context and isinstance(mistake, click.NoSuchOption):
            hint = _hint_at_start(context.command, mistake.option_name) or hint
        elif context and isinstance(mistake, click.MissingParameter):
            hint = f"{_usage(context, mistake.param)}; {hint}"
        elif context and _TOO_MANY in message:
            from dsort.naming.names import shortened

            hint = f"{_usage(context)}; a pattern without quotes is many words; {hint}"
            message = shortened(message.rstrip(").")) + ")"
        return exits.report_usage(message, command=command, hint=hint, as_json=as_json)
    except DsortError as failure:
        return exits.report_error(failure, as_json=as_json, debug=debug)
    except KeyboardInterrupt:
        # A job that runs here has a handler of its own for this signal.
        hint = "no job was running here: there is nothing to resume"
        stopped = JobStoppedError("stopped by SIGINT", signal_number=signal.SIGINT, hint=hint)
        return exits.report_error(stopped, as_json=as_json, debug=debug)
    except BrokenPipeError:
        if not output.reader_gone(sys.stdout):
            raise
        output.abandon_stdout()  # the reader has closed the pipe
        return 128 + signal.SIGPIPE


def _usage(context: click.Context, missing: click.Parameter | None = None) -> str:
    """The usage of a command, with the option that is ``missing``."""
    usage = " ".join(context.get_usage().split()).removeprefix("Usage: ")
    if not isinstance(missing, click.Option):
        return usage
    word = missing.metavar or str(missing.name).upper()
    return usage.replace("[OPTIONS]", f"{missing.opts[-1]} {word} [OPTIONS]")


def _hint_at_start(made: click.Command, option: str) -> str:
    """A hint if ``option`` is given to a verb that makes its own spec. Only verbs that read a spec
    have such an option."""
    makes_a_spec = any("--print-spec" in each.opts for each in made.params)
    if not makes_a_spec or option not in ("--move", "--ray-labels", "--ray-resources"):
        return ""
    return f"--print-spec prints the spec, for `{COMMAND} start -f SPEC {option}`"


def _complete(asked: str) -> int:
    """Print what a shell asks for. Only the verbs in the words of the command line are loaded."""
    words = os.environ.get("COMP_WORDS", "").split()
    app = whole_app(lambda each: each.load() if each.name in words else each.stand_in())
    output.write(completion.answer(app, asked))
    return 0


def _run(argv: Sequence[str]) -> int:
    if asked := os.environ.get(completion.COMPLETE):
        return _complete(asked)
    name, args, made = _command(list(argv))
    try:
        context = made.make_context(name, args)
        is_verb = not isinstance(made, click.Group)
        if is_part() and is_verb and "server" not in {each.name for each in made.params}:
            raise missing_part(name, takes_a_service=False)
        with context, naming_flags(context):
            made.invoke(context)
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.UsageError as mistake:  # some errors of click do not have their command
        mistake.ctx = mistake.ctx or click.Context(made, info_name=name)
        raise
    return 0
