"""The options that several verbs share, each with one name and one meaning."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from dsort.cli.progress import ProgressStyle

__all__ = [
    "AsJson",
    "BandwidthMax",
    "BucketUri",
    "DatabaseUrl",
    "Debug",
    "Destination",
    "JobBucket",
    "JobName",
    "JobNames",
    "JobOrManifest",
    "JobOrNone",
    "Labels",
    "Local",
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
    "Scratch",
    "Server",
    "ShowAll",
    "Source",
    "SpecSource",
    "StateDir",
    "TokenFile",
    "Verbose",
    "WaitOption",
    "Workers",
]

MoveChoice = Literal["auto", "map", "spill"]

Source = Annotated[
    str | None,
    typer.Argument(metavar="SRC", help="Input bucket, in place of the spec's.", show_default=False),
]
Destination = Annotated[
    str | None,
    typer.Argument(
        metavar="DST", help="Output bucket, in place of the spec's.", show_default=False
    ),
]
SpecSource = Annotated[
    str,
    typer.Option(
        "--spec",
        "-f",
        metavar="SPEC",
        help="The job spec: a JSON or YAML file, `-` for stdin, or its text.",
        show_default=False,
    ),
]
Root = Annotated[
    Path | None,
    typer.Option(
        "--root",
        metavar="DIR",
        envvar="DSORT_ROOT",
        help="Data root: bare bucket names are directories in it.  [default: .]",
        show_default=False,
    ),
]
Scratch = Annotated[
    Path | None,
    typer.Option(
        "--scratch",
        metavar="DIR",
        help="Where to put temporary files.  [default: beside the output]",
        show_default=False,
    ),
]
MemoryMax = Annotated[
    str | None,
    typer.Option(
        "--memory-max",
        metavar="SIZE",
        help="Memory for the whole job on a node, as in 8GB.  [default: what is there]",
        show_default=False,
    ),
]
BandwidthMax = Annotated[
    str | None,
    typer.Option(
        "--bandwidth-max",
        metavar="SIZE",
        help="Bytes a second to and from object stores, for the whole job, as in 500MB.",
        show_default=False,
    ),
]
Move = Annotated[
    MoveChoice,
    typer.Option(
        "--move",
        metavar="WAY",
        help="How payload moves: map (inputs fit in memory), spill (through scratch), or auto.",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        metavar="N",
        min=1,
        help="Worker processes.  [default: one a core]",
        show_default=False,
    ),
]
Ray = Annotated[
    bool, typer.Option("--ray", help="Run on Ray: one started here, unless --ray-address is given.")
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
        help='What a worker takes of its node besides a CPU, as in {"dsort": 1}.',
        show_default=False,
    ),
]
RayLabels = Annotated[
    str | None,
    typer.Option(
        "--ray-labels",
        metavar="JSON",
        help='The nodes to work on, as in {"zone": "in(a, b)"}.',
        show_default=False,
    ),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace shards that exist under output names.")
]
RemoveStale = Annotated[
    bool,
    typer.Option(
        "--remove-stale",
        help="With --overwrite: remove shards with higher numbers that are left of the replaced "
        "result, once the new one is there.",
    ),
]
ProgressOption = Annotated[
    ProgressStyle,
    typer.Option(
        "--progress",
        metavar="STYLE",
        help="On stderr: bar, plain, json (one object a line), none, or auto (bar on a terminal).",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Debug = Annotated[
    bool, typer.Option("--debug", help="With an error, show where in dsort it arose.")
]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Show the spec with all its defaults first.")
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
        metavar="JOB|MANIFEST",
        help="A job id (its beginning is enough), the path or URI of a manifest.json, or a bucket: "
        "its newest job.",
        show_default=False,
    ),
]
JobOrNone = Annotated[
    str | None,
    typer.Argument(
        metavar="[JOB|MANIFEST]",
        help="A job id (its beginning is enough), the path or URI of a manifest.json, or a bucket: "
        "its newest job. Without it: the jobs of the service.",
        show_default=False,
    ),
]
JobNames = Annotated[
    list[str],
    typer.Argument(
        metavar="JOB...",
        help="Job ids (the beginning of each is enough); without a service also a bucket: its "
        "newest job.",
        show_default=False,
    ),
]
JobName = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="A job id (its beginning is enough), or a bucket: its newest job.",
        show_default=False,
    ),
]
JobBucket = Annotated[
    str | None,
    typer.Option(
        "--bucket",
        metavar="BUCKET",
        help="The job's output bucket.  [default: every directory in the data root]",
        show_default=False,
    ),
]
ShowAll = Annotated[
    bool, typer.Option("--all", "-a", help="List everything, not only the first ten.")
]

# --- of a service --------------------------------------------------------------------------------

Server = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="URL",
        envvar="DSORT_SERVER",
        help="Ask this dsort service, as in http://127.0.0.1:8080.",
        show_default=False,
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        envvar="DSORT_TOKEN_FILE",
        help="Who we are: the file with the service's token. DSORT_TOKEN may hold the token "
        "itself; no option does, as others could read it.",
        show_default=False,
    ),
]
Local = Annotated[bool, typer.Option("--local", help="Here, although DSORT_SERVER is set.")]
RemoteJobs = Annotated[
    list[str],
    typer.Argument(
        metavar="JOB...", help="Job ids; the beginning of each is enough.", show_default=False
    ),
]
RemoteJob = Annotated[
    str,
    typer.Argument(metavar="JOB", help="A job id; its beginning is enough.", show_default=False),
]
Priority = Annotated[
    int, typer.Option("--priority", metavar="N", help="With a service: higher goes first.")
]
Labels = Annotated[
    list[str] | None,
    typer.Option(
        "--label",
        metavar="TEXT",
        help="With a service: to find jobs by; may be repeated.",
        show_default=False,
    ),
]
WaitOption = Annotated[
    bool, typer.Option("--wait", help="With a service: wait, and end as the job does.")
]
StateDir = Annotated[
    Path | None,
    typer.Option(
        "--state-dir",
        envvar="DSORT_STATE_DIR",
        metavar="DIR",
        help="What the service keeps: its database, logs.  [default: ~/.local/state/dsort]",
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
        help="postgresql://USER@HOST/NAME or sqlite:////PATH.  [default: SQLite in the state "
        "directory]",
        show_default=False,
        show_envvar=False,
    ),
]
