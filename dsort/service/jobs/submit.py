"""Makes a job in the queue from a client's spec: parses the spec, checks the rights of the client,
and inserts the job."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace
from sqlalchemy import Connection, select

from dsort.errors import ConflictError, ForbiddenError, NotFoundError, SpecError, SpecProblem
from dsort.job.setup.new_job import with_seed
from dsort.naming.names import first_few
from dsort.naming.overlap import claims_of
from dsort.results.hooks import hooks_of
from dsort.results.job_ids import new_job_id
from dsort.service.config import ServiceConfig, policy_of
from dsort.service.database.tables import JobRow, jobs, split_uris
from dsort.service.jobs.queue import conflict_of
from dsort.service.jobs.store import JobStore, OnInsert
from dsort.service.security.guard import SpecPlaces, check_files, check_hooks, check_spec
from dsort.service.security.spec_text import bounded_problems, check_fields, parse_unchecked
from dsort.service.security.tokens import ADMIN, Identity
from dsort.spec.load import LoadedSpec, parse_spec, read_transform
from dsort.spec.model import JobSpec
from dsort.spec.transform import Lookup, NamedTransform, Transform, parse_use

LABELS_MAX = 20
PRIORITY_USUAL = 0
"""Only admins may use a higher priority: such jobs always start first, so other jobs might never
start."""
LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=/:@+-]{0,62}")


class Asked(Struct, frozen=True, kw_only=True):
    """The options of a request beside the spec. ``dry_run``: only plan."""

    priority: int = 0
    labels: tuple[str, ...] = ()
    description: str | None = None  # None = the spec's
    dry_run: bool = False
    idempotency_key: str | None = None
    hooks: Mapping[str, Any] | None = None  # None = the spec's
    more: Mapping[str, Any] = field(default_factory=dict)  # schedule_id, due_at, after_commit


class CheckedSpec(LoadedSpec, frozen=True):
    """A spec that this service allows, and the places that it names."""

    places: SpecPlaces


class Submitter:
    """Accepts the jobs of all sources: REST, a guest's routes, schedules."""

    def __init__(
        self, config: ServiceConfig, store: JobStore, transforms: Lookup | None = None
    ) -> None:
        self._config = config
        self._store = store
        self._transforms = transforms
        self.policy = policy_of(config)

    def read(self, body: bytes, identity: Identity) -> CheckedSpec:
        """The spec in a request's body, JSON or YAML, checked as submitted by ``identity``.
        ``SpecError`` with all problems, ``ForbiddenError``."""
        checked = self.check(parse_unchecked(body), identity)
        allow(identity, self.prepare(checked, identity.name, Asked()))
        return checked

    def read_inline(
        self, spec: Mapping[str, Any], identity: Identity
    ) -> tuple[JobSpec, tuple[str, ...]]:
        """(a spec that the service itself writes for a request, the URIs of the files that it
        names). The spec may run only code that an admin has registered. ``SpecError``,
        ``ForbiddenError``."""
        parsed = self._parsed(spec, None).spec
        uris = check_files(parsed, self.policy)
        _refuse(identity, _forbidden_files(identity, uris))
        return parsed, uris

    def check(self, spec: Mapping[str, Any], identity: Identity | None = None) -> CheckedSpec:
        """The parsed spec, if this service allows its places and hooks, and allows its code to
        ``identity``: only an admin's spec may name code. ``allow`` checks the buckets of
        ``identity`` later."""
        loaded = self._parsed(spec, identity)
        places = check_spec(loaded.spec, self.policy)
        check_hooks(loaded.spec, self._config)
        return CheckedSpec(loaded.spec, loaded.warnings, places)

    def _parsed(self, spec: Mapping[str, Any], identity: Identity | None) -> LoadedSpec:
        check_fields(spec)
        with bounded_problems():
            loaded = parse_spec(
                spec,
                reactions=self._config.reactions,
                ais_is_there=self._config.run.settings.ais_is_there,
                transforms=self._transforms,
            )
        without_tokens = self._config.no_auth
        own = permitted(loaded.spec, identity, self._transforms, without_tokens=without_tokens)
        return LoadedSpec(own, loaded.warnings)

    def prepare(self, checked: CheckedSpec, owner: str, asked: Asked) -> JobRow:
        """The job of a spec. A spec without a seed gets a random seed."""
        spec, places = with_seed(checked.spec), checked.places
        dry = asked.dry_run or spec.dry_run
        hooks = asked.hooks or hooks_of(spec.on_success, spec.on_failure)
        return JobRow(
            job_id=new_job_id(),
            kind="plan" if dry else "run",
            owner=owner,
            spec=spec.canonical(),
            input_uri=places.input_uri,
            output_uri=places.output_uri,
            file_uris=places.file_uris,
            claims=[] if dry else claims_of(spec, places.output_uris),
            priority=asked.priority,
            description=spec.description if asked.description is None else asked.description,
            labels=checked_labels(asked.labels),
            hooks=hooks if hooks and not dry else None,
            idempotency_key=asked.idempotency_key,
            **asked.more,
        )

    def job_of(
        self, spec: Mapping[str, Any], identity: Identity, asked: Asked | None = None
    ) -> JobRow:
        """The job of a spec that ``identity`` submits, ready for the queue. ``SpecError``;
        ``ForbiddenError`` if ``identity`` may not use what the spec names."""
        new = self.prepare(self.check(spec, identity), identity.name, asked or Asked())
        allow(identity, new)
        return new

    def submit(
        self, body: bytes, identity: Identity, asked: Asked, on_insert: OnInsert | None = None
    ) -> tuple[JobRow, bool]:
        """Put the spec of a request into the queue: (the job, whether it is new)."""
        new = self.job_of(parse_unchecked(body), identity, asked)
        if asked.idempotency_key is not None:
            new = replace(new, body_digest=digest_of(body, asked))
        return self.put(new, on_insert)

    def put(self, new: JobRow, on_insert: OnInsert | None = None) -> tuple[JobRow, bool]:
        """Put a job into the queue. ``ConflictError`` if a running job writes names that this job
        would write. ``on_insert`` writes further rows of a new job, in the same transaction."""
        return self._store.submit(
            new, before=lambda connection: refuse_overlap(connection, new), on_insert=on_insert
        )


def allowed_priority(identity: Identity, priority: int) -> int:
    """``priority``, or the highest priority that this identity may give a job, if that is lower."""
    return priority if identity.at_least(ADMIN) else min(priority, PRIORITY_USUAL)


def allow(identity: Identity, new: JobRow) -> None:
    """``ForbiddenError`` if this identity may not use the priority or a bucket. The error names all
    such buckets."""
    if allowed_priority(identity, new.priority) != new.priority:
        raise ForbiddenError(
            f"{identity.name} is a {identity.role}, and a priority above {PRIORITY_USUAL} is for "
            "an admin",
            hint="leave the priority out: owners take turns; or ask an admin to submit the job",
        )
    wrong = [
        f"{role} {uri}"
        for role, uri, allowed in (
            *(("input", uri, identity.may_read(uri)) for uri in split_uris(new.input_uri)),
            *(("output", uri, identity.may_write(uri)) for uri in split_uris(new.output_uri)),
        )
        if not allowed
    ]
    _refuse(identity, [*wrong, *_forbidden_files(identity, new.file_uris or ())])


def _forbidden_files(identity: Identity, uris: Iterable[str]) -> list[str]:
    """Descriptions of the files that this identity may not read, because its token allows neither
    the file nor a directory above it as an input."""
    return [
        f"file {uri}"
        for uri in uris
        if not any(map(identity.may_read, accumulate(uri.split("/"), "{}/{}".format)))
    ]


def _refuse(identity: Identity, wrong: Sequence[str]) -> None:
    if wrong:
        raise ForbiddenError(
            f"the token of {identity.name} is not for the {' and the '.join(wrong)}",
            hint="`dsort token ls` shows the buckets of each token",
        )


_CLAIMED: Final = select(jobs.c.job_id, jobs.c.claims).where(
    jobs.c.state == "running",
    jobs.c.kind == "run",
    jobs.c.claims.is_not(None),
    jobs.c.stop_asked_at.is_(None),
)


def refuse_overlap(connection: Connection, new: JobRow) -> None:
    """``ConflictError`` if a running job may write names that the new job may write. Jobs whose
    stop was requested are ignored: they are about to release their names, and the queue begins the
    new job afterwards."""
    if not new.claims:
        return
    for job_id, claims in connection.execute(_CLAIMED):
        template = conflict_of(new.claims, claims)
        if template is not None:
            raise ConflictError(
                f"job {job_id}, which runs, may write the same names: {template}",
                hint="wait for it, stop it, or choose an output_format with a prefix of its own",
            )


def checked_labels(labels: tuple[str, ...]) -> tuple[str, ...]:
    """The labels, without duplicates. ``SpecError`` names the invalid labels."""
    problems = [
        SpecProblem("label", f"{label[:80]!r} is no label", "letters, digits and . _ = / : @ + -")
        for label in labels[: LABELS_MAX + 1]
        if not LABEL.fullmatch(label)
    ]
    if len(labels) > LABELS_MAX:
        problems.append(SpecProblem("label", f"more than {LABELS_MAX} labels"))
    if problems:
        raise SpecError(problems)
    return tuple(dict.fromkeys(labels))


def digest_of(body: bytes, asked: Asked) -> str:
    """A digest that is equal for two requests for the same job."""
    state = hashlib.sha256(body)
    rest = (asked.priority, asked.labels, asked.description, asked.dry_run)
    state.update(repr(rest).encode("utf-8", "surrogatepass"))
    return state.hexdigest()


# -- code -----------------------------------------------------------------------------------------

# All submitters may use steps over keys, sizes and small members, which run no code and open no
# files. All other steps run with the rights of the service's own account. The role of the token
# that submits the job decides whether they are allowed, and the job's spec records the admin. This
# rule holds for programs of ``on_shard`` too, and for jobs that amend a result, because these
# change shards that other users read.


def permitted(
    spec: JobSpec,
    identity: Identity | None,
    registered: Lookup | None = None,
    *,
    without_tokens: bool = False,
) -> JobSpec:
    """``spec`` with the name of the admin who allowed its code in ``transform.allowed_by``, "" if
    the spec runs no code, and in ``on_shard.allowed_by``. ``ForbiddenError`` if no admin allowed
    it, or if the spec amends a result and is not submitted by an admin.

    ``registered``: finds the transforms that admins have registered. If a spec names a transform,
    but has other steps than the transform, the wrong name is removed. ``without_tokens``: the
    service has no tokens, so no caller is an admin.
    """
    allowed_by = ""
    for name, value in (("on_shard", spec.on_shard), ("amend", spec.amend)):
        if value is not None:
            allowed_by = _admin(f"{name}:", _ADMINS_ALONE, identity, without_tokens)
    if spec.on_shard is not None:
        own = spec.on_shard.model_copy(update={"allowed_by": allowed_by})
        spec = spec.model_copy(update={"on_shard": own})
    transform = spec.transform
    if transform is None:
        return spec
    found = _found(transform, registered)
    allowed_by = ""
    if kinds := transform.code_kinds:
        what = f"transform.steps has {first_few(kinds)}:"
        allowed_by = (
            found.owner
            if found is not None and not without_tokens
            else _admin(what, _REGISTERED, identity, without_tokens)
        )
    changed: dict[str, Any] = {"allowed_by": allowed_by}
    if found is None:
        changed |= {"use": None, "digest": ""}
    return spec.model_copy(update={"transform": transform.model_copy(update=changed)})


def _found(transform: Transform, registered: Lookup | None) -> NamedTransform | None:
    """The registered version that the spec names, if its steps are those of the spec."""
    if transform.use is None or registered is None:
        return None
    try:
        found = registered(*parse_use(transform.use))
    except NotFoundError:
        return None
    kept, _ = read_transform(found.fields)
    return found if kept["steps"] == transform.canonical()["steps"] else None


_ADMINS_ALONE: Final = "ask an admin to submit the job, or run the job on the machine itself"
_REGISTERED: Final = (
    "use a transform that an admin has registered: `dsort transforms ls` lists them; or run the "
    "job with `dsort start` on the machine itself"
)


def _admin(what: str, hint: str, identity: Identity | None, without_tokens: bool) -> str:
    """The name of the admin who submits the request; ``ForbiddenError`` if ``identity`` is not an
    admin."""
    if without_tokens:
        raise ForbiddenError(
            f"{what} a service without tokens refuses this from the network",
            hint="make tokens: `dsort token add NAME --role admin`",
        )
    if identity is not None and identity.at_least(ADMIN):
        return identity.name
    raise ForbiddenError(
        f"{what} no spec that comes over the network may have this, unless an admin submits it",
        hint=hint,
    )
