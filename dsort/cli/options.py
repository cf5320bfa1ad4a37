"""The options that several verbs share, each with one name and one meaning."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Struct

from dsort.cli.parameters import Argument, Option
from dsort.cli.progress import ProgressStyle
from dsort.durations import format_duration, parse_duration_s
from dsort.errors import SpecError, SpecProblem
from dsort.sizes import parse_size_bytes

MoveChoice = Literal["auto", "map", "range", "spill"]

Source = Annotated[
    str | None,
    Argument(
        metavar="SRC",
        help="The input bucket, in place of the input bucket of the spec.",
    ),
]
Destination = Annotated[
    str | None,
    Argument(
        metavar="DST",
        help="The output bucket, in place of the output bucket of the spec.",
    ),
]
Shard = Annotated[
    str,
    Argument(
        metavar="SHARD",
        help="A shard: a file, BUCKET/NAME under the data root, or a URI: s3://bucket/shard.tar.",
    ),
]
SpecSource = Annotated[
    str,
    Option(
        "--spec",
        "-f",
        metavar="SPEC",
        help="The job spec: a JSON or YAML file, `-` for stdin, or the text of the spec.",
    ),
]
Root = Annotated[
    Path | None,
    Option(
        "--root",
        metavar="DIR",
        envvar="DSORT_ROOT",
        help="The data root. A bare bucket name is a directory in the data root.  [default: .]",
    ),
]
Overwrite = Annotated[
    bool,
    Option("--overwrite", help="Replace existing shards that have the names of output shards."),
]
Force = Annotated[
    bool,
    Option(
        "--force",
        help="Replace and remove shards even if a view points to them: nothing can read that "
        "view any more.",
    ),
]
RemoveStale = Annotated[
    bool,
    Option(
        "--remove-stale",
        help="With --overwrite: after the new result is complete, remove the shards of "
        "the replaced result that have higher numbers than the new shards.",
    ),
]
ProgressOption = Annotated[
    ProgressStyle,
    Option(
        "--progress",
        metavar="STYLE",
        help="The form of the progress on stderr: bar, plain, json (one object a line), "
        "none, or auto (bar on a terminal).",
    ),
]
AsJson = Annotated[bool, Option("--json", help="Print the result as JSON.")]
Debug = Annotated[
    bool, Option("--debug", help="With an error, show where in dsort the error arose.")
]
Verbose = Annotated[
    bool, Option("--verbose", "-v", help="Show the spec first, with all its defaults.")
]
BucketUri = Annotated[
    str,
    Argument(
        metavar="BUCKET",
        help="A directory under the data root, or a URI: file:///dir, s3://bucket/prefix, gs://, "
        "az://, ais://, hf://.",
    ),
]
JobOrManifest = Annotated[
    str,
    Argument(
        metavar="RESULT",
        help="A job id (the beginning of the id is enough), the path or URI of a "
        "manifest.json, or a bucket. A bucket stands for its newest job.",
    ),
]
JobOrNone = Annotated[
    str | None,
    Argument(
        metavar="JOB",
        help="A job id (the beginning of the id is enough), the path or URI of a "
        "manifest.json, or a bucket. A bucket stands for its newest job.  [default: list all "
        "jobs]",
    ),
]
JobNames = Annotated[
    list[str],
    Argument(
        metavar="JOB...",
        help="Job ids (the beginning of each id is enough). Without a service, also "
        "buckets: a bucket stands for its newest job.",
    ),
]
JobName = Annotated[
    str,
    Argument(
        metavar="JOB",
        help="A job id (the beginning of the id is enough), or a bucket. A bucket stands "
        "for its newest job.",
    ),
]
JobBucket = Annotated[
    str | None,
    Option(
        "--bucket",
        metavar="BUCKET",
        help="The output bucket of the job.  [default: every directory in the data root]",
    ),
]
MaxExpansion = Annotated[
    int,
    Option(
        "--max-expansion",
        metavar="N",
        help="Refuse a compressed shard that expands to more than N times its length.",
        min=1,
    ),
]
VerifyMemoryMax = Annotated[
    str | None,
    Option(
        "--max-memory",
        metavar="SIZE",
        help="The memory for decoding. A zstd frame may refer back over a quarter of this "
        "memory, up to 128 MiB, as frames of `zstd --long=27` do.  [default: 256MB]",
    ),
]
VerifySample = Annotated[
    str | None,
    Option(
        "--sample",
        metavar="PART",
        help="Read a random part of the output shards, as 1% or 0.01, and at least one of them. "
        "Of the other shards, only names, sizes and the counts in the manifest are checked. "
        "Nothing is compared with the inputs: the command does not find a missing, changed or "
        "foreign record if the manifest agrees with it.",
    ),
]
SampleSeed = Annotated[
    str | None,
    Option("--seed", help="The seed that draws the shards of --sample.  [default: the job's id]"),
]
VerifyMaxExpansion = Annotated[
    int | None,
    Option(
        "--max-expansion",
        metavar="N",
        help="Report a compressed shard that expands to more than N times its length.  "
        "[default: the limits of the job and of the manifest]",
        min=1,
    ),
]
ShowAll = Annotated[bool, Option("--all", "-a", help="List all entries, not only the first ten.")]

# --- of a service --------------------------------------------------------------------------------

Server = Annotated[
    str | None,
    Option(
        "--server",
        metavar="URL",
        envvar="DSORT_SERVER",
        help="Send the command to this dsort service, as in http://127.0.0.1:8080.",
    ),
]
TokenFile = Annotated[
    Path | None,
    Option(
        "--token-file",
        metavar="FILE",
        envvar="DSORT_TOKEN_FILE",
        help="The file with the token for the service. The environment variable "
        "DSORT_TOKEN may hold the token itself. No option takes the token, because other "
        "users of the machine could read the option.",
    ),
]
Local = Annotated[bool, Option("--local", help="Run on this machine, even if DSORT_SERVER is set.")]
RemoteJobs = Annotated[
    list[str],
    Argument(
        metavar="JOB...",
        help="Job ids; the beginning of each id is enough.",
    ),
]
RemoteJob = Annotated[
    str,
    Argument(
        metavar="JOB",
        help="A job id; the beginning of the id is enough.",
    ),
]
Priority = Annotated[
    int,
    Option(
        "--priority",
        metavar="N",
        help="With a service: the priority of the job. A job with a higher number runs first.",
    ),
]
Labels = Annotated[
    list[str] | None,
    Option(
        "--label",
        metavar="TEXT",
        help="With a service: a label of the job; may be repeated.",
    ),
]
WaitOption = Annotated[
    bool,
    Option(
        "--wait", help="With a service: wait for the job, and exit with the exit code of the job."
    ),
]
StateDir = Annotated[
    Path | None,
    Option(
        "--state-dir",
        envvar="DSORT_STATE_DIR",
        metavar="DIR",
        help="The directory for the database and the logs of the service.  [default: "
        "~/.local/state/dsort]",
        show_envvar=False,
    ),
]
DatabaseUrl = Annotated[
    str | None,
    Option(
        "--database",
        envvar="DSORT_DATABASE_URL",
        metavar="URL",
        help="The database: postgresql://USER@HOST/NAME or sqlite:////PATH.  [default: "
        "SQLite in the state directory]",
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


def sample_part(text: str) -> float:
    """The part that ``--sample`` gives: above 0, at most 1."""
    number, percent, rest = text.strip().partition("%")
    try:
        part = float(number) / (100 if percent else 1)
    except ValueError:
        part = 0.0
    if rest or not 0 < part <= 1:
        raise SpecError([SpecProblem("--sample", f"must be a part, as 1% or 0.01, not {text!r}")])
    return part


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

    workers: Annotated[
        int | None,
        Option(
            "--workers",
            metavar="N",
            min=1,
            help="The number of worker processes.  [default: one a core]",
        ),
    ] = None
    memory_max: Annotated[
        str | None,
        Option(
            "--max-memory",
            metavar="SIZE",
            help="The memory that the whole job may use on a node, as in 8GB.  [default: all "
            "available memory]",
        ),
    ] = None
    bandwidth_max: Annotated[
        str | None,
        Option(
            "--max-bandwidth",
            metavar="SIZE",
            help="The limit of the whole job for traffic to and from object stores, in bytes "
            "a second, as in 500MB.",
        ),
    ] = None
    scratch: Annotated[
        Path | None,
        Option(
            "--scratch",
            metavar="DIR",
            help="The directory for temporary files; it is made if it is missing.  [default: "
            "beside the output]",
        ),
    ] = None
    ray: Annotated[
        bool,
        Option(
            "--ray",
            help="Run on the Ray cluster at --ray-address. Without --ray-address: on the "
            "cluster at ray_address of the settings. Without both: on a Ray that dsort starts on "
            "this machine.",
        ),
    ] = False
    ray_address: Annotated[
        str | None,
        Option(
            "--ray-address",
            metavar="ADDR",
            help="Run on this Ray cluster: auto, ray://HOST:PORT, or HOST:PORT.",
        ),
    ] = None


class EngineArguments(RunArguments, frozen=True, kw_only=True):
    """The options of ``RunArguments``, and options that only few jobs need."""

    move: Annotated[
        MoveChoice,
        Option(
            "--move",
            metavar="PATH",
            help="The way of records from inputs to outputs: map (the inputs fit in memory), "
            "range (large records, read directly from the input shards), spill (records go "
            "through scratch), or auto.",
        ),
    ] = "auto"
    ray_resources: Annotated[
        str | None,
        Option(
            "--ray-resources",
            metavar="JSON",
            help="The resources that each worker needs of its node besides a CPU, as in "
            '{"dsort": 1}.',
        ),
    ] = None
    ray_labels: Annotated[
        str | None,
        Option(
            "--ray-labels",
            metavar="JSON",
            help='The labels of the nodes that workers run on, as in {"zone": "in(a, b)"}.',
        ),
    ] = None


class Service(Struct, frozen=True, kw_only=True):
    """The service that the command is for, and the token."""

    server: Server = None
    token_file: TokenFile = None


class ServiceOrHere(Service, frozen=True, kw_only=True):
    """The service and the token, for verbs that also work without a service."""

    local: Local = False
