"""``dsort serve``: run the job service."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import replace

from dsort.cli import options, output
from dsort.cli.parameters import Option, Without
from dsort.cli.run import run_options
from dsort.errors import SpecError, SpecProblem
from dsort.installation import need_extra
from dsort.options import RunOptions

if TYPE_CHECKING:
    from dsort.service.config import ServiceConfig

Host = Annotated[
    str, Option("--host", metavar="ADDR", help="The address that the service listens on.")
]
Port = Annotated[
    int,
    Option(
        "--port",
        metavar="PORT",
        min=0,
        max=65535,
        help="The port that the service listens on; 0: any free port.",
    ),
]
NoAuth = Annotated[
    bool, Option("--no-auth", help="Accept requests without a token; on loopback only.")
]
Allow = Annotated[
    list[str] | None,
    Option(
        "--allow",
        metavar="GLOB",
        help="Buckets that jobs may use besides the buckets under the data root, e.g. "
        "'s3://team-*' or /data/shared; may be repeated.",
    ),
]
EkmAllowHost = Annotated[
    list[str] | None,
    Option(
        "--ekm-allow-host",
        metavar="HOST[:PORT]",
        help="Web servers from which external key maps (ekm_file of a spec) may be "
        "fetched, e.g. 'maps.example.com:8443' or '*.example.com'; may be repeated. HOST "
        "allows the usual port (80 or 443), HOST:PORT allows one port, and 'HOST:*' allows "
        "any port.",
    ),
]
EkmAllowPrivate = Annotated[
    bool,
    Option("--ekm-allow-private", help="Fetch key maps from private and loopback addresses, too."),
]
WebhookAllowHost = Annotated[
    list[str] | None,
    Option(
        "--webhook-allow-host",
        metavar="GLOB",
        help="Web servers that on_success and on_failure may call, e.g. hooks.example.com or "
        "10.0.0.5:8080; may be repeated.",
    ),
]
WebhookAllowPrivate = Annotated[
    bool,
    Option("--webhook-allow-private", help="Call webhooks at private and loopback addresses, too."),
]
MaxRunningJobs = Annotated[
    int,
    Option(
        "--max-running-jobs",
        metavar="N",
        min=1,
        help="The largest number of jobs that run at a time.",
    ),
]
MaxRunningPlans = Annotated[
    int,
    Option(
        "--max-running-plans",
        metavar="N",
        min=1,
        help="The largest number of dry runs that run at a time.",
    ),
]
MaxRunningPerOwner = Annotated[
    int | None,
    Option(
        "--max-running-per-owner",
        metavar="N",
        min=1,
        help="The largest number of jobs of one owner that run at a time, on all replicas "
        "together.",
    ),
]
MaxQueuedPerOwner = Annotated[
    int,
    Option(
        "--max-queued-per-owner",
        metavar="N",
        min=1,
        help="The largest number of jobs of one owner that wait in the queue.",
    ),
]
Scratch = Annotated[
    Path | None,
    Option(
        "--scratch",
        metavar="DIR",
        help="The directory for temporary files of jobs.  [default: in the state directory]",
    ),
]
MaxJobTime = Annotated[
    str | None,
    Option(
        "--max-job-time",
        metavar="DURATION",
        help="Stop jobs that run longer than DURATION, e.g. 6h, 90m, 1d.",
    ),
]
HandOver = Annotated[
    bool,
    Option(
        "--hand-over",
        help="When the service ends, put its running jobs back into the queue, for another "
        "service to resume. Use this option in containers, because no process outlives a "
        "container. Without this option, the jobs continue.",
    ),
]
Insecure = Annotated[
    bool,
    Option(
        "--insecure",
        help="Serve an address other than loopback without TLS. Use this option only if a "
        "proxy in front of the service has TLS, or if the network is trusted.",
    ),
]
SslCertfile = Annotated[
    Path | None,
    Option(
        "--ssl-certfile",
        metavar="FILE",
        exists=True,
        dir_okay=False,
        help="The certificate for HTTPS.",
    ),
]
SslKeyfile = Annotated[
    Path | None,
    Option(
        "--ssl-keyfile",
        metavar="FILE",
        exists=True,
        dir_okay=False,
        help="The private key of the certificate.",
    ),
]
Reactions = Annotated[
    list[str] | None,
    Option(
        "--reaction",
        metavar="NAME=VALUE",
        help="A policy for all specs that do not set this policy, as in "
        "missing_shards=abort; may be repeated.",
    ),
]
RequestsPerMinute = Annotated[
    int,
    Option(
        "--requests-per-minute",
        metavar="N",
        min=1,
        help="The largest number of requests in a minute from one token, or from one "
        "address without a token.",
    ),
]
Aistore = Annotated[
    bool,
    Option(
        "--aistore",
        help="Also answer AIStore's clients, let requests read and write objects and buckets, and "
        "keep named transforms.",
    ),
]
MaxObjectSize = Annotated[
    str | None,
    Option(
        "--max-object-size",
        metavar="SIZE",
        help="With --aistore: the size of the largest object that a request may write; 0: "
        "requests change no objects.  [default: 64GiB; 0 with --no-auth, where any account "
        "of the machine could write]",
    ),
]
MetricsOpen = Annotated[bool, Option("--metrics-open", help="Serve /metrics without a token.")]
UrlFile = Annotated[
    Path | None,
    Option(
        "--url-file",
        metavar="FILE",
        help="Write the URL of the service to FILE when the service accepts requests.",
    ),
]


class Log(Struct, frozen=True, kw_only=True):
    """What the service writes to stderr."""

    access_log: Annotated[bool, Option("--access-log", help="Log every request on stderr.")] = False
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Option(
            "--log-level",
            metavar="LEVEL",
            envvar="DSORT_LOG",
            help="Write log lines of this level and above: those of the service to stderr, those "
            "of a job to the log file of the job. A level is debug, info, warning or error.  "
            "[default: info]",
            show_default=False,
        ),
    ] = "info"


JOB_TIME_MIN_S = 10


def serve(
    host: Host = "127.0.0.1",
    port: Port = 8080,
    root: options.Root = None,
    state_dir: options.StateDir = None,
    database: options.DatabaseUrl = None,
    no_auth: NoAuth = False,
    allow: Allow = None,
    ekm_allow_host: EkmAllowHost = None,
    ekm_allow_private: EkmAllowPrivate = False,
    webhook_allow_host: WebhookAllowHost = None,
    webhook_allow_private: WebhookAllowPrivate = False,
    max_running_jobs: MaxRunningJobs = 1,
    max_running_plans: MaxRunningPlans = 2,
    max_running_per_owner: MaxRunningPerOwner = None,
    max_queued_per_owner: MaxQueuedPerOwner = 1_000,
    max_job_time: MaxJobTime = None,
    hand_over: HandOver = False,
    reactions: Reactions = None,
    *,
    run: Annotated[options.EngineArguments, Without(("ray_resources", "ray_labels", "scratch"))],
    scratch: Scratch = None,
    ssl_certfile: SslCertfile = None,
    ssl_keyfile: SslKeyfile = None,
    insecure: Insecure = False,
    requests_per_minute: RequestsPerMinute = 60_000,
    max_object_size: MaxObjectSize = None,
    aistore: Aistore = False,
    metrics_open: MetricsOpen = False,
    url_file: UrlFile = None,
    log: Log,
    debug: options.Debug = False,
) -> None:
    """Run the job service: REST, a queue, schedules, and a web page.

    \b
    Try it:
      dsort serve --no-auth
      dsort start --server http://127.0.0.1:8080 -f spec.json --wait
    """
    need_extra("service")
    from dsort.service.config import ServiceConfig

    config = ServiceConfig(
        run=_of_each_job(replace(run, scratch=scratch), root),
        **_places(state_dir, database),
        host=host,
        port=port,
        ssl_certfile=ssl_certfile,
        ssl_keyfile=ssl_keyfile,
        insecure=insecure,
        no_auth=no_auth,
        metrics_open=metrics_open,
        allow=tuple(map(_uri_pattern, allow or ())),
        ekm_allow_hosts=tuple(ekm_allow_host or ()),
        ekm_allow_private=ekm_allow_private,
        webhook_allow_hosts=tuple(webhook_allow_host or ()),
        webhook_allow_private=webhook_allow_private,
        reactions=_reactions(reactions or []),
        jobs_running_max=max_running_jobs,
        plans_running_max=max_running_plans,
        running_per_owner_max=max_running_per_owner,
        queued_per_owner_max=max_queued_per_owner,
        hand_over=hand_over,
        job_time_max_s=_job_time_max_s(max_job_time),
        requests_per_minute_max=requests_per_minute,
        object_bytes_max=_object_bytes_max(max_object_size, no_auth=no_auth),
        log_level=log.log_level,
    )
    _serve(config, url_file=url_file, access_log=log.access_log, aistore=aistore)


def _serve(config: ServiceConfig, *, aistore: bool, **more: Any) -> None:
    from dsort.service.server import run_service

    if aistore:
        from dsort.service.aistore.guest import AistoreGuest

        more["guest"] = AistoreGuest()
    run_service(config, say=output.inform, **more)


def _places(state_dir: Path | None, database: str | None) -> dict[str, Any]:
    """The state directory of the service, and the settings that follow from it."""
    from dsort.service.config import database_url_of, replica_name, state_dir_of

    directory = state_dir_of(state_dir)
    return {
        "state_dir": directory,
        "database_url": database_url_of(database, directory),
        "replica": replica_name(directory),
    }


def _of_each_job(run: options.EngineArguments, root: Path | None) -> RunOptions:
    """The options of each job; their root is resolved, so that it stays the same if a link changes
    later."""
    found = run_options(run, root=root, overwrite=False)
    return replace(found, root=found.root.resolve())


def _reactions(given: list[str]) -> dict[str, str]:
    """``NAME=VALUE`` texts as fields. ``SpecError`` names all texts that have another form."""
    from dsort.spec.load import parse_spec

    problems = [
        SpecProblem("--reaction", f'"{each}" is no NAME=VALUE', "e.g. missing_shards=abort")
        for each in given
        if "=" not in each
    ]
    reactions = dict(each.split("=", 1) for each in given if "=" in each)
    try:
        parse_spec({"input_bck": "x", "output_format": "x-{0..9}"}, reactions=reactions)
    except SpecError as error:
        problems += [
            replace(each, path=f"--reaction {each.path.removeprefix('Config.')}")
            for each in error.problems
        ]
    if problems:
        raise SpecError(problems)
    return reactions


def _job_time_max_s(text: str | None) -> float | None:
    return (
        None if text is None else options.duration_s(text, "--max-job-time", min_s=JOB_TIME_MIN_S)
    )


def _object_bytes_max(text: str | None, *, no_auth: bool) -> int:
    from dsort.service.config import OBJECT_BYTES_MAX

    if text is None:
        return 0 if no_auth else OBJECT_BYTES_MAX
    return options.size_bytes(text, "--max-object-size")


def _uri_pattern(text: str) -> str:
    """A pattern of paths, turned into a pattern of the URIs of directories; other patterns are
    unchanged."""
    return f"file://{quote(text, safe='/*?')}" if text.startswith("/") else text
