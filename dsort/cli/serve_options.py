"""The options of ``dsort serve`` that no other verb has."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Struct

from dsort.cli.parameters import Option

__all__ = [
    "Aistore",
    "Allow",
    "EkmAllowHost",
    "EkmAllowPrivate",
    "HandOver",
    "Host",
    "Insecure",
    "Log",
    "MaxJobTime",
    "MaxObjectSize",
    "MaxQueuedPerOwner",
    "MaxRunningJobs",
    "MaxRunningPerOwner",
    "MaxRunningPlans",
    "MetricsOpen",
    "NoAuth",
    "Port",
    "Reactions",
    "RequestsPerMinute",
    "SslCertfile",
    "SslKeyfile",
    "UrlFile",
    "WebhookAllowHost",
    "WebhookAllowPrivate",
]

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
        help="When the service ends, put its running jobs back into the queue, for "
        "another service to resume. Use this option in containers, because no process "
        "outlives a container. Without this option, the jobs run on.",
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
