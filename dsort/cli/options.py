"""The options that several verbs share, each with one name and one meaning."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints, overload

import typer
from msgspec import Struct

from dsort.cli.progress import ProgressStyle
from dsort.durations import format_duration, parse_duration_s
from dsort.errors import SpecError, SpecProblem
from dsort.sizes import parse_size_bytes

__all__ = [
    "AsJson",
    "BandwidthMax",
    "BucketUri",
    "DatabaseUrl",
    "Debug",
    "Destination",
    "EngineArguments",
    "JobBucket",
    "JobName",
    "JobNames",
    "JobOrManifest",
    "JobOrNone",
    "Labels",
    "Local",
    "MaxExpansion",
    "MemoryMax",
    "Move",
    "MoveChoice",
    "Overwrite",
    "Priority",
    "ProgressOption",
    "Ray",
    "RayAddress",
    "RayLabels",
    "RayResources",
    "RemoteJob",
    "RemoteJobs",
    "RemoveStale",
    "Root",
    "RunArguments",
    "Scratch",
    "Server",
    "Service",
    "ServiceOrHere",
    "Shard",
    "ShowAll",
    "Source",
    "SpecSource",
    "StateDir",
    "TokenFile",
    "Verbose",
    "VerifyMaxExpansion",
    "VerifyMemoryMax",
    "WaitOption",
    "Workers",
    "duration_s",
    "grouped",
    "size_bytes",
]


MoveChoice = Literal["auto", "map", "range", "spill"]

Source = Annotated[
    str | None,
    typer.Argument(
        metavar="SRC",
        help="The input bucket, in place of the input bucket of the spec.",
        show_default=False,
    ),
]
Destination = Annotated[
    str | None,
    typer.Argument(
        metavar="DST",
        help="The output bucket, in place of the output bucket of the spec.",
        show_default=False,
    ),
]
Shard = Annotated[
    str,
    typer.Argument(
        metavar="SHARD",
        help="A shard: a file, BUCKET/NAME under the data root, or a URI: s3://bucket/shard.tar.",
        show_default=False,
    ),
]
SpecSource = Annotated[
    str,
    typer.Option(
        "--spec",
        "-f",
        metavar="SPEC",
        help="The job spec: a JSON or YAML file, `-` for stdin, or the text of the spec.",
        show_default=False,
    ),
]
Root = Annotated[
    Path | None,
    typer.Option(
        "--root",
        metavar="DIR",
        envvar="DSORT_ROOT",
        help="The data root. A bare bucket name is a directory in the data root.  [default: .]",
        show_default=False,
    ),
]
Scratch = Annotated[
    Path | None,
    typer.Option(
        "--scratch",
        metavar="DIR",
        help="The directory for temporary files.  [default: beside the output]",
        show_default=False,
    ),
]
MemoryMax = Annotated[
    str | None,
    typer.Option(
        "--max-memory",
        metavar="SIZE",
        help="The memory that the whole job may use on a node, as in 8GB.  [default: all "
        "available memory]",
        show_default=False,
    ),
]
BandwidthMax = Annotated[
    str | None,
    typer.Option(
        "--max-bandwidth",
        metavar="SIZE",
        help="The limit of the whole job for traffic to and from object stores, in bytes "
        "a second, as in 500MB.",
        show_default=False,
    ),
]
Move = Annotated[
    MoveChoice,
    typer.Option(
        "--move",
        metavar="PATH",
        help="The way of records from inputs to outputs: map (the inputs fit in memory), "
        "range (large records, read directly from the input shards), spill (records go "
        "through scratch), or auto.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        metavar="N",
        min=1,
        help="The number of worker processes.  [default: one a core]",
        show_default=False,
    ),
]
Ray = Annotated[
    bool,
    typer.Option(
        "--ray",
        help="Run on the Ray cluster at --ray-address. Without --ray-address: on the "
        "cluster at ray_address of the settings. Without both: on a Ray that dsort starts on "
        "this machine.",
    ),
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        "--ray-address",
        metavar="ADDR",
        help="Run on this Ray cluster: auto, ray://HOST:PORT, or HOST:PORT.",
        show_default=False,
    ),
]
RayResources = Annotated[
    str | None,
    typer.Option(
        "--ray-resources",
        metavar="JSON",
        help='The resources that each worker needs of its node besides a CPU, as in {"dsort": 1}.',
        show_default=False,
    ),
]
RayLabels = Annotated[
    str | None,
    typer.Option(
        "--ray-labels",
        metavar="JSON",
        help='The labels of the nodes that workers run on, as in {"zone": "in(a, b)"}.',
        show_default=False,
    ),
]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite", help="Replace existing shards that have the names of output shards."
    ),
]
RemoveStale = Annotated[
    bool,
    typer.Option(
        "--remove-stale",
        help="With --overwrite: after the new result is complete, remove the shards of "
        "the replaced result that have higher numbers than the new shards.",
    ),
]
ProgressOption = Annotated[
    ProgressStyle,
    typer.Option(
        "--progress",
        metavar="STYLE",
        help="The form of the progress on stderr: bar, plain, json (one object a line), "
        "none, or auto (bar on a terminal).",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Debug = Annotated[
    bool, typer.Option("--debug", help="With an error, show where in dsort the error arose.")
]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Show the spec first, with all its defaults.")
]
BucketUri = Annotated[
    str,
    typer.Argument(
        metavar="BUCKET",
        help="A directory under the data root, or a URI: file:///dir, s3://bucket/prefix, gs://, "
        "az://, ais://.",
        show_default=False,
    ),
]
JobOrManifest = Annotated[
    str,
    typer.Argument(
        metavar="RESULT",
        help="A job id (the beginning of the id is enough), the path or URI of a "
        "manifest.json, or a bucket. A bucket stands for its newest job.",
        show_default=False,
    ),
]
JobOrNone = Annotated[
    str | None,
    typer.Argument(
        metavar="JOB",
        help="A job id (the beginning of the id is enough), the path or URI of a "
        "manifest.json, or a bucket. A bucket stands for its newest job.  [default: list all "
        "jobs]",
        show_default=False,
    ),
]
JobNames = Annotated[
    list[str],
    typer.Argument(
        metavar="JOB...",
        help="Job ids (the beginning of each id is enough). Without a service, also "
        "buckets: a bucket stands for its newest job.",
        show_default=False,
    ),
]
JobName = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="A job id (the beginning of the id is enough), or a bucket. A bucket stands "
        "for its newest job.",
        show_default=False,
    ),
]
JobBucket = Annotated[
    str | None,
    typer.Option(
        "--bucket",
        metavar="BUCKET",
        help="The output bucket of the job.  [default: every directory in the data root]",
        show_default=False,
    ),
]
MaxExpansion = Annotated[
    int,
    typer.Option(
        "--max-expansion",
        metavar="N",
        help="Refuse a compressed shard that expands to more than N times its length.",
        min=1,
    ),
]
VerifyMemoryMax = Annotated[
    str | None,
    typer.Option(
        "--max-memory",
        metavar="SIZE",
        help="The memory for decoding. A zstd frame may refer back over a quarter of this "
        "memory, up to 128 MiB, as frames of `zstd --long=27` do.  [default: 256MB]",
        show_default=False,
    ),
]
VerifyMaxExpansion = Annotated[
    int | None,
    typer.Option(
        "--max-expansion",
        metavar="N",
        help="Report a compressed shard that expands to more than N times its length.  "
        "[default: the limits of the job and of the manifest]",
        min=1,
        show_default=False,
    ),
]
ShowAll = Annotated[
    bool, typer.Option("--all", "-a", help="List all entries, not only the first ten.")
]

# --- of a service --------------------------------------------------------------------------------

Server = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="URL",
        envvar="DSORT_SERVER",
        help="Send the command to this dsort service, as in http://127.0.0.1:8080.",
        show_default=False,
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        envvar="DSORT_TOKEN_FILE",
        help="The file with the token for the service. The environment variable "
        "DSORT_TOKEN may hold the token itself. No option takes the token, because other "
        "users of the machine could read the option.",
        show_default=False,
    ),
]
Local = Annotated[
    bool, typer.Option("--local", help="Run on this machine, even if DSORT_SERVER is set.")
]
RemoteJobs = Annotated[
    list[str],
    typer.Argument(
        metavar="JOB...", help="Job ids; the beginning of each id is enough.", show_default=False
    ),
]
RemoteJob = Annotated[
    str,
    typer.Argument(
        metavar="JOB", help="A job id; the beginning of the id is enough.", show_default=False
    ),
]
Priority = Annotated[
    int,
    typer.Option(
        "--priority",
        metavar="N",
        help="With a service: the priority of the job. A job with a higher number runs first.",
    ),
]
Labels = Annotated[
    list[str] | None,
    typer.Option(
        "--label",
        metavar="TEXT",
        help="With a service: a label of the job; may be repeated.",
        show_default=False,
    ),
]
WaitOption = Annotated[
    bool,
    typer.Option(
        "--wait", help="With a service: wait for the job, and exit with the exit code of the job."
    ),
]
StateDir = Annotated[
    Path | None,
    typer.Option(
        "--state-dir",
        envvar="DSORT_STATE_DIR",
        metavar="DIR",
        help="The directory for the database and the logs of the service.  [default: "
        "~/.local/state/dsort]",
        show_default=False,
        show_envvar=False,
    ),
]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        "--database",
        envvar="DSORT_DATABASE_URL",
        metavar="URL",
        help="The database: postgresql://USER@HOST/NAME or sqlite:////PATH.  [default: "
        "SQLite in the state directory]",
        show_default=False,
        show_envvar=False,
    ),
]


def duration_s(text: str, option: str, *, min_s: float = 0) -> float:
    """The seconds of a duration such as ``30m``. A ``SpecError`` names ``option``."""
    try:
        found_s = parse_duration_s(text)
    except ValueError as error:
        raise SpecError([SpecProblem(option, str(error), "for example 30m, 6h or 7d")]) from None
    if found_s < min_s:
        least = format_duration(min_s)
        problem = SpecProblem(option, f"{text!r} is less than {least}", "for example 30m, 6h or 7d")
        raise SpecError([problem])
    return found_s


def size_bytes(text: str, option: str, *, least: int = 0) -> int:
    """The bytes of a size such as ``100MB``, at least ``least``. A ``SpecError`` names
    ``option``."""
    try:
        found = parse_size_bytes(text)
    except ValueError as error:
        raise SpecError([SpecProblem(option, str(error))]) from None
    if found < least:
        raise SpecError([SpecProblem(option, f"must be more than {least - 1} bytes")])
    return found


class RunArguments(Struct, frozen=True, kw_only=True):
    """The options of each verb that runs a job, as given on the command line."""

    workers: Workers = None
    memory_max: MemoryMax = None
    bandwidth_max: BandwidthMax = None
    scratch: Scratch = None
    ray: Ray = False
    ray_address: RayAddress = None


class EngineArguments(RunArguments, frozen=True, kw_only=True):
    """The same, with options that only few jobs need."""

    move: Move = "auto"
    ray_resources: RayResources = None
    ray_labels: RayLabels = None


class Service(Struct, frozen=True, kw_only=True):
    """The service that the command is for, and the token."""

    server: Server = None
    token_file: TokenFile = None


class ServiceOrHere(Service, frozen=True, kw_only=True):
    """The same, for verbs that also work without a service."""

    local: Local = False


def _is_group(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


@overload
def grouped(verb: Callable[..., None]) -> Callable[..., None]: ...
@overload
def grouped(
    *, without: Collection[str]
) -> Callable[[Callable[..., None]], Callable[..., None]]: ...


def grouped(
    verb: Callable[..., None] | None = None, *, without: Collection[str] = ()
) -> Callable[..., Any]:
    """Let a verb take groups of options. A parameter whose type is one of the structs above
    becomes one option for each of its fields, except those in ``without``."""
    if verb is None:
        return partial(grouped, without=without)
    hints = get_type_hints(verb, include_extras=True)
    groups: dict[str, Any] = {name: each for name, each in hints.items() if _is_group(each)}
    parameters: list[Parameter] = []
    fields_of: dict[str, list[str]] = {}
    for name, parameter in signature(verb).parameters.items():
        if name not in groups:
            parameters.append(
                parameter.replace(annotation=hints[name], kind=Parameter.KEYWORD_ONLY)
            )
            continue
        field_hints = get_type_hints(groups[name], include_extras=True)
        names = groups[name].__struct_fields__
        defaults = dict(zip(names, groups[name].__struct_defaults__, strict=True))
        fields_of[name] = [each for each in names if each not in without]
        parameters += [
            Parameter(
                each,
                Parameter.KEYWORD_ONLY,
                default=defaults[each],
                annotation=field_hints[each],
            )
            for each in fields_of[name]
        ]

    @wraps(verb)
    def with_fields(**given: Any) -> None:
        for name, names in fields_of.items():
            given[name] = groups[name](**{each: given.pop(each) for each in names})
        verb(**given)

    with_fields.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    with_fields.__annotations__ = {each.name: each.annotation for each in parameters}
    return with_fields
