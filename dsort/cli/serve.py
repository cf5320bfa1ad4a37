"""``dsort serve``: run the job service."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

from msgspec.structs import replace

from dsort.cli import options, output, serve_options
from dsort.cli.options import duration_s
from dsort.cli.parameters import Without
from dsort.cli.run import run_options
from dsort.errors import SpecError, SpecProblem
from dsort.installation import need_extra
from dsort.options import RunOptions

if TYPE_CHECKING:
    from dsort.service.config import ServiceConfig

__all__ = ["serve"]

JOB_TIME_MIN_S = 10


def serve(
    host: serve_options.Host = "127.0.0.1",
    port: serve_options.Port = 8080,
    root: options.Root = None,
    state_dir: options.StateDir = None,
    database: options.DatabaseUrl = None,
    no_auth: serve_options.NoAuth = False,
    allow: serve_options.Allow = None,
    ekm_allow_host: serve_options.EkmAllowHost = None,
    ekm_allow_private: serve_options.EkmAllowPrivate = False,
    webhook_allow_host: serve_options.WebhookAllowHost = None,
    webhook_allow_private: serve_options.WebhookAllowPrivate = False,
    max_running_jobs: serve_options.MaxRunningJobs = 1,
    max_running_plans: serve_options.MaxRunningPlans = 2,
    max_running_per_owner: serve_options.MaxRunningPerOwner = None,
    max_queued_per_owner: serve_options.MaxQueuedPerOwner = 1_000,
    max_job_time: serve_options.MaxJobTime = None,
    hand_over: serve_options.HandOver = False,
    reactions: serve_options.Reactions = None,
    *,
    run: Annotated[options.EngineArguments, Without(("ray_resources", "ray_labels", "scratch"))],
    scratch: serve_options.Scratch = None,
    ssl_certfile: serve_options.SslCertfile = None,
    ssl_keyfile: serve_options.SslKeyfile = None,
    insecure: serve_options.Insecure = False,
    requests_per_minute: serve_options.RequestsPerMinute = 60_000,
    max_object_size: serve_options.MaxObjectSize = None,
    aistore: serve_options.Aistore = False,
    metrics_open: serve_options.MetricsOpen = False,
    url_file: serve_options.UrlFile = None,
    log: serve_options.Log,
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

    guest = None
    if aistore:
        from dsort.service.aistore.guest import AistoreGuest

        guest = AistoreGuest()
    run_service(config, say=output.inform, guest=guest, **more)


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
    return None if text is None else duration_s(text, "--max-job-time", min_s=JOB_TIME_MIN_S)


def _object_bytes_max(text: str | None, *, no_auth: bool) -> int:
    from dsort.service.config import OBJECT_BYTES_MAX

    if text is None:
        return 0 if no_auth else OBJECT_BYTES_MAX
    return options.size_bytes(text, "--max-object-size")


def _uri_pattern(text: str) -> str:
    """A pattern of paths as a pattern of the URIs of directories; other patterns unchanged."""
    return f"file://{quote(text, safe='/*?')}" if text.startswith("/") else text
