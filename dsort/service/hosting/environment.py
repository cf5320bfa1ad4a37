"""The environment of a job process: the address of the database, how to run jobs, and which
buckets and files one may open.

It is in a variable, because all users of a machine can read command lines.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from msgspec import convert, field, to_builtins
from msgspec.structs import asdict, replace

from dsort.errors import SpecError, SpecProblem
from dsort.job.setup.resources import store_limits, usable_memory_bytes
from dsort.options import RunOptions
from dsort.service.config import ServiceConfig, policy_of
from dsort.service.database.tables import JobRow, paths_of, split_uris
from dsort.service.security.guard import check_bucket, policy_of_bucket
from dsort.settings import Settings, resolve_ref
from dsort.spec.buckets import parse_bucket
from dsort.storage.bucket import Bucket
from dsort.storage.network_policy import FetchPolicy
from dsort.storage.open import open_bucket
from dsort.storage.ref import BucketRef

VARIABLE = "DSORT_HOSTED_JOB"
NOT_FOR_JOBS = ("DSORT_DATABASE_URL", "DSORT_SERVER", "DSORT_TOKEN")
INSTALLED = ("site-packages", "dist-packages")


class JobEnvironment(ServiceConfig, frozen=True, kw_only=True):
    """The configuration as the processes of jobs have it. ``run``: see ``options``.
    ``environment``: more variables for these processes."""

    environment: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, config: ServiceConfig) -> Self:
        """The environment of the jobs of a service. If the operator does not set the memory of a
        job, the jobs that may run at once share the available memory equally."""
        run = config.run
        memory_max_bytes = run.memory_max_bytes
        if memory_max_bytes is None and config.jobs_running_max > 1:
            memory_max_bytes = usable_memory_bytes().limit_bytes // config.jobs_running_max
        run = replace(
            run,
            root=run.root.absolute(),
            scratch=config.scratch_dir,
            memory_max_bytes=memory_max_bytes,
            ray_address=run.ray_address if run.runtime == "ray" else None,
            # The service itself runs the commands of hooks.
            settings=replace(run.settings, commands=()),
        )
        return cls(**asdict(config) | {"state_dir": config.state_dir.absolute(), "run": run})

    def options(self) -> RunOptions:
        """The options with which the engine runs the job: ``run``, and the places that its spec may
        use. Called in the job's process, so that links are followed as they are at that time."""
        return replace(self.run, fetch=policy_of(self).fetch_policy())

    def open_alone(self, ref: BucketRef) -> Bucket:
        """A bucket of an earlier job, opened with the addresses and limits of the settings. Links
        that lead out of it are never followed."""
        settings, policy = self.run.settings, policy_of(self)
        place = check_bucket(ref, policy)
        ref = resolve_ref(ref, settings)
        limits, own = store_limits(ref, self.run), policy_of_bucket(place, policy)
        return open_bucket(ref, root=self.run.root, limits=limits, policy=own)

    def to_environment(self) -> dict[str, str]:
        """The variables of a job process: ours, this environment as a text, and the path to this
        dsort."""
        text = json.dumps(to_builtins(replace(self, environment={}), enc_hook=str))
        return {**self.path_environment(), VARIABLE: text, **self.environment}

    @staticmethod
    def path_environment() -> dict[str, str]:
        """Our variables, without secrets that no job needs, and with the path to this dsort."""
        ours = {name: value for name, value in os.environ.items() if name not in NOT_FOR_JOBS}
        package = Path(__file__).resolve().parents[3]  # the directory that holds dsort/
        if package.name not in INSTALLED:
            parts = [str(package), *filter(None, [ours.get("PYTHONPATH")])]
            ours["PYTHONPATH"] = os.pathsep.join(parts)
        return ours

    @classmethod
    def from_environment(cls) -> Self:
        """The environment that the service has passed to this process. Its variable is removed, so
        that child processes do not get it."""
        values = json.loads(os.environ.pop(VARIABLE))  # its paths may be no UTF-8
        return convert(values, cls, dec_hook=lambda kind, text: kind(text))


def interpreter() -> list[str]:
    """The command that runs a module of this dsort, independent of the files in the current
    directory."""
    return [sys.executable, "-P", "-m"]


def policy_of_job(policy: FetchPolicy, row: JobRow) -> FetchPolicy:
    """The service's ``policy`` for one job. It allows only the directories and files for which the
    token was checked when the job was submitted. Links that lead out of them are never followed."""
    files = None if row.file_uris is None else paths_of(row.file_uris)
    return policy.of_job(
        paths_of(split_uris(row.input_uri)), paths_of(split_uris(row.output_uri)), files
    )


def output_ref(row: JobRow, settings: Settings) -> BucketRef:
    """The bucket that a job writes to, as its spec names it."""
    try:
        return parse_bucket(row.spec.get("output_bck"), ais_is_there=settings.ais_is_there)
    except ValueError as error:  # another program wrote the row
        raise SpecError([SpecProblem("output_bck", str(error))]) from error


def open_output(row: JobRow, run: RunOptions, policy: FetchPolicy) -> Bucket:
    """The bucket that a job writes to. ``policy``: the service's."""
    settings = run.settings
    own = policy_of_job(policy, row).for_outputs()
    ref = resolve_ref(output_ref(row, settings), settings)
    return open_bucket(ref, root=run.root, limits=settings.limits(ref), policy=own)
