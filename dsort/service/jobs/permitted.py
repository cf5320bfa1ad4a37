"""Whose code a job may run: that of an admin who submitted the job or registered the transform that
it uses.

Everybody may use steps over keys, sizes and small members: they run no code, and open nothing. All
other steps run with the rights of the service's own account. The role of the token that submits the
job decides whether they are allowed, and the job's spec records the admin. The same holds for
programs of ``on_shard``, and for jobs that amend a result, which change shards that others read.
"""

from __future__ import annotations

from typing import Any, Final

from dsort.errors import ForbiddenError, NotFoundError
from dsort.naming.names import first_few
from dsort.service.security.tokens import ADMIN, Identity
from dsort.spec.load import read_transform
from dsort.spec.model import JobSpec
from dsort.spec.named import Lookup, NamedTransform, parse_use
from dsort.spec.transform import Transform

__all__ = ["permitted"]


def permitted(
    spec: JobSpec,
    identity: Identity | None,
    registered: Lookup | None = None,
    *,
    without_tokens: bool = False,
) -> JobSpec:
    """``spec`` with the name of the admin who allowed its code in ``transform.allowed_by``, "" if
    it runs none, and in ``on_shard.allowed_by``. ``ForbiddenError`` if no admin allowed it, or if
    the spec amends a result and is not submitted by an admin.

    ``registered``: finds the transforms that admins have registered; if the steps of a spec differ
    from those of the transform that it claims to use, the name of the transform is removed, because
    it would be wrong. ``without_tokens``: the service has no tokens, so no one counts as an admin.
    """
    allowed_by = ""
    for field, value in (("on_shard", spec.on_shard), ("amend", spec.amend)):
        if value is not None:
            allowed_by = _admin(f"{field}:", _ADMINS_ALONE, identity, without_tokens)
    if spec.on_shard is not None:
        own = spec.on_shard.model_copy(update={"allowed_by": allowed_by})
        spec = spec.model_copy(update={"on_shard": own})
    transform = spec.transform
    if transform is None:
        return spec
    found = _found(transform, registered)
    allowed_by = ""
    kinds = transform.code_kinds
    if kinds:
        allowed_by = _who(kinds, found, identity, without_tokens=without_tokens)
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


def _who(
    kinds: tuple[str, ...],
    found: NamedTransform | None,
    identity: Identity | None,
    *,
    without_tokens: bool,
) -> str:
    what = f"transform.steps has {first_few(kinds)}:"
    if found is not None and not without_tokens:
        return found.owner
    return _admin(what, _REGISTERED, identity, without_tokens)


_ADMINS_ALONE: Final = "ask an admin to submit it, or run the job on the machine itself"
_REGISTERED: Final = (
    "use a transform that an admin has registered: `dsort transforms ls` lists them; or run the "
    "job with `dsort start` on the machine itself"
)


def _admin(what: str, hint: str, identity: Identity | None, without_tokens: bool) -> str:
    """The name of the admin who submits the request; ``ForbiddenError`` if ``identity`` is not an
    admin."""
    if without_tokens:
        raise ForbiddenError(
            f"{what} a service that asks nobody for a token does this for nobody on the network",
            hint="make tokens: `dsort token add NAME --role admin`",
        )
    if identity is not None and identity.at_least(ADMIN):
        return identity.name
    raise ForbiddenError(
        f"{what} no spec that comes over the network may have this, unless an admin submits it",
        hint=hint,
    )
