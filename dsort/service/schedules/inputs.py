"""Whether a schedule finds input shards today: the writer of a schedule is warned at once of a
prefix without any."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from dsort.data.json_values import to_json
from dsort.errors import DsortError
from dsort.job.setup.inputs import absent_inputs
from dsort.options import RunOptions
from dsort.service.schedules.render import has_placeholder
from dsort.service.security.guard import place_of
from dsort.settings import resolve_ref
from dsort.spec.model import JobSpec
from dsort.storage.addresses import parse_address
from dsort.storage.bucket import Bucket
from dsort.storage.network_policy import FetchPolicy
from dsort.storage.open import open_bucket
from dsort.storage.routed import BucketPlace, open_inputs

__all__ = ["warnings_of_inputs"]

LOOK_S_MAX: Final = 5.0
_INPUTS: Final = ("input_bck", "bck", "input_format", "inputs")


class _TookTooLongError(Exception):
    """The check took too long: nothing is known of the inputs."""


def warnings_of_inputs(
    written: Mapping[str, Any], spec: JobSpec, run: RunOptions, policy: FetchPolicy
) -> tuple[str, ...]:
    """The problems of a schedule's inputs today. Empty if each run has other inputs, or if the
    check takes too long. ``written``: the spec with its placeholders. ``spec``: the same, rendered
    for any run."""
    if has_placeholder(to_json([written.get(name) for name in _INPUTS])):
        return ()
    if spec.ingest is not None or spec.amend is not None:
        return ()
    ends_at = time.monotonic() + LOOK_S_MAX

    def check() -> None:
        if time.monotonic() > ends_at:
            raise _TookTooLongError

    def opened(place: BucketPlace) -> Bucket:
        ref = resolve_ref(place.ref, run.settings)
        limits = replace(run.settings.limits(ref), retry_seconds_max=LOOK_S_MAX)
        fetch = policy
        if ref.is_directory:  # tokens were checked against this path, so no link may lead out of it
            roots = (parse_address(place_of(ref, run.root)).path,)
            fetch = replace(policy, roots=roots, patterns=())
        return open_bucket(ref, root=run.root, limits=limits, policy=fetch)

    try:
        places = [BucketPlace(each.name, each.bucket) for each in spec.sources]
        absent = absent_inputs(spec, open_inputs(places, opened), check=check)
    except _TookTooLongError:
        return ()
    except DsortError as error:
        return (f"a run would fail today: {error.message}",)
    return (f"{absent}: a run fails until there is one",) if absent else ()
