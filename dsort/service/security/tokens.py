"""Tokens and identities: who sends a request, and what they may do.

A token is ``dsort_<id>_<secret>``; the database holds the id and the SHA-256 of the secret. The
secret is 192 random bits, which a slow hash would not make harder to guess. The token's row is read
on each request: a token that was removed is refused at once.

An identity has a role and patterns of buckets. A *viewer* reads; a *submitter* also submits jobs
and schedules and changes its own; an *admin* does everything to all of them, and manages tokens.
Every identity sees only jobs whose two buckets match: the input's URI one of ``input_globs``, the
output's one of ``output_globs``.

In a pattern ``*`` is any text, slashes too, and ``?`` any one character; nothing else is special. A
pattern stands for whole URIs: ``s3://team-a/*`` is not the bucket ``s3://team-a`` itself. The URI
of a directory is ``file://`` and its path with all links resolved.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import asdict
from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Table,
    and_,
    case,
    delete,
    false,
    insert,
    not_,
    or_,
    select,
    true,
)
from sqlalchemy.exc import IntegrityError

from dsort.errors import (
    ConflictError,
    NotFoundError,
    SpecError,
    SpecProblem,
)
from dsort.naming.patterns import wildcard_match
from dsort.service.database import tables
from dsort.service.database.engine import Database
from dsort.service.database.tables import tokens
from dsort.service.jobs.rows import rfc3339
from dsort.service.security.uris import LINE_END, rows_of_uris, split_uris

__all__ = [
    "ADMIN",
    "ANYONE",
    "NAME_CHARACTERS_MAX",
    "NAME_PATTERN",
    "ROLES",
    "SUBMITTER",
    "VIEWER",
    "HasBuckets",
    "Identity",
    "StoredToken",
    "TokenStore",
    "bucket_globs",
    "matches",
    "token_id_of",
    "visible",
]

VIEWER, SUBMITTER, ADMIN = "viewer", "submitter", "admin"
ROLES = (VIEWER, SUBMITTER, ADMIN)  # each may do what the roles before it may
GLOBS_MAX = 100
GLOB_CHARACTERS_MAX = 512
GLOB_STARS_MAX = 8
_LIKE_ESCAPE = "!"


class HasBuckets(Protocol):
    """The buckets of a job or a schedule."""

    @property
    def input_uri(self) -> str:
        """The URI of the bucket that it reads."""

    @property
    def output_uri(self) -> str:
        """The URI of the bucket that it writes to."""


class Identity(Struct, frozen=True):
    """The sender of a request. ``name``: the token's; jobs and schedules that it makes belong to
    that name."""

    name: str
    role: str  # viewer | submitter | admin
    input_globs: tuple[str, ...] = ("*",)
    output_globs: tuple[str, ...] = ("*",)

    def at_least(self, role: str) -> bool:
        """Whether the identity has all rights of ``role``."""
        return ROLES.index(self.role) >= ROLES.index(role)

    def may_read(self, uri: str) -> bool:
        """Whether the bucket may be an input; of several (``uris.joined_uris``) each must match."""
        return all(matches(self.input_globs, each) for each in split_uris(uri))

    def may_write(self, uri: str) -> bool:
        """Whether the bucket may be an output; of several (``uris.joined_uris``) each must
        match."""
        return all(matches(self.output_globs, each) for each in split_uris(uri))

    def may_see(self, thing: HasBuckets) -> bool:
        """Whether the job or schedule is visible to the identity."""
        return self.may_read(thing.input_uri) and self.may_write(thing.output_uri)

    def may_submit(self, thing: HasBuckets) -> bool:
        """Whether the identity may submit a job or schedule with these buckets."""
        return self.at_least(SUBMITTER) and self.may_see(thing)

    def may_change(self, owner: str) -> bool:
        """Whether the identity may stop, resume or remove things that it sees and that ``owner``
        owns."""
        return self.role == ADMIN or (self.role == SUBMITTER and owner == self.name)


ANYONE = Identity("anyone", ADMIN)
"""The sender of requests to a service that requires no tokens."""


def matches(globs: Iterable[str], uri: str) -> bool:
    """Whether one of the patterns matches ``uri``; in time linear in its length."""
    try:
        uri.encode()
    except UnicodeEncodeError:  # a lone surrogate: no bucket has such a name
        return False
    return any(wildcard_match(glob, uri) for glob in globs)


def visible(identity: Identity, table: Table = tables.jobs) -> ColumnElement[bool]:
    """``may_see`` as a condition on the rows of ``jobs`` or of ``schedules``."""
    return and_(
        _all_like(table.c.input_uri, identity.input_globs),
        _all_like(table.c.output_uri, identity.output_globs),
    )


def _all_like(column: ColumnElement[str], globs: Sequence[str]) -> ColumnElement[bool]:
    """``_like`` for each URI in a text of several."""
    if "*" in globs:
        return true()
    each = rows_of_uris(column).table_valued("value")
    other = select(1).select_from(each).where(not_(_like(each.c.value, globs))).exists()
    return case((column.contains(LINE_END), not_(other)), else_=_like(column, globs))


def _like(column: ColumnElement[str], globs: Sequence[str]) -> ColumnElement[bool]:
    if "*" in globs:
        return true()
    escaped = {c: _LIKE_ESCAPE + c for c in "%_" + _LIKE_ESCAPE} | {"*": "%", "?": "_"}
    table = str.maketrans(escaped)
    likes = [column.like(glob.translate(table), escape=_LIKE_ESCAPE) for glob in globs]
    return or_(false(), *likes)


def bucket_globs(texts: Iterable[str], *, path: str = "buckets") -> tuple[str, ...]:
    """The patterns that a user gave, checked and without duplicates; an absolute path stands for
    the URI of that directory. ``SpecError`` with all problems."""
    found: list[str] = []
    problems: list[SpecProblem] = []
    for text in texts:
        glob = _of_path(text) if text.startswith("/") else text
        while "**" in glob:
            glob = glob.replace("**", "*")
        mistake = _mistake(glob)
        if mistake:
            problems.append(SpecProblem(path, f"{text[:80]!r}: {mistake}", _GLOB_HINT))
        found.append(glob)
    if len(found) > GLOBS_MAX:
        problems.append(SpecProblem(path, f"more than {GLOBS_MAX} patterns"))
    if problems:
        raise SpecError(problems)
    return tuple(dict.fromkeys(found))


_GLOB_HINT = "for example 's3://team-a/*', '/data/team-a*', or '*' for all"


def _of_path(text: str) -> str:
    # Like BucketRef.uri, but without %3F: here a ? is any one character.
    return "file://" + text.replace("%", "%25").replace("#", "%23")


def _mistake(glob: str) -> str:
    if not glob.isprintable():
        return "a pattern consists of printable characters"
    if len(glob) > GLOB_CHARACTERS_MAX:
        return f"a pattern has at most {GLOB_CHARACTERS_MAX} characters"
    if glob.count("*") > GLOB_STARS_MAX:
        return f"a pattern has at most {GLOB_STARS_MAX} stars"
    if "://" not in glob and not glob.startswith("*"):
        return "a pattern stands for whole URIs of buckets"
    return ""


NAME_CHARACTERS_MAX = 128
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._@+-]*$"

_TOKEN = re.compile(r"dsort_([0-9a-f]{12})_([0-9a-f]{48})")
_NAME = re.compile(NAME_PATTERN.removesuffix("$") + r"\Z")


class StoredToken(Struct, frozen=True):
    """A token as it is listed: all but its secret. Times are seconds since 1970."""

    token_id: str
    name: str
    role: str
    input_globs: tuple[str, ...]
    output_globs: tuple[str, ...]
    created_at: float
    expires_at: float | None

    @property
    def identity(self) -> Identity:
        """The identity of requests with this token."""
        return Identity(self.name, self.role, self.input_globs, self.output_globs)

    def view(self) -> dict[str, Any]:
        """The token for REST and ``dsort token ls --json``."""
        return {"name": self.name, **self.details()}

    def details(self) -> dict[str, Any]:
        """The properties of the token besides its name, for the audit trail."""
        return {
            "role": self.role,
            "input_buckets": list(self.input_globs),
            "output_buckets": list(self.output_globs),
            "created_at": rfc3339(self.created_at),
            "expires_at": rfc3339(self.expires_at),
        }


def token_id_of(text: str) -> str | None:
    """The id in the text of a token, which is not secret; None if the text is not a token."""
    found = _TOKEN.fullmatch(text)
    return found[1] if found else None


class TokenStore:
    """The tokens of a service. Safe to use from many threads. ``clock``: seconds since 1970."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    def add(
        self,
        name: str,
        role: str,
        input_globs: Sequence[str] = ("*",),
        output_globs: Sequence[str] = ("*",),
        *,
        expires_at: float | None = None,
        also: Callable[[Connection, StoredToken], None] = lambda connection, made: None,
    ) -> str:
        """Make a token; returns its text, which cannot be found out later. ``SpecError`` for an
        invalid name, role or pattern; ``ConflictError`` if the name is taken. ``also`` is called in
        the same transaction."""
        inputs = bucket_globs(input_globs, path="input_buckets")
        outputs = bucket_globs(output_globs, path="output_buckets")
        _check(name, role, inputs, outputs)
        if expires_at is not None and expires_at <= self._clock():
            raise SpecError("the token would have expired already")
        token_id, secret = secrets.token_hex(6), secrets.token_hex(24)
        made = StoredToken(token_id, name, role, inputs, outputs, self._clock(), expires_at)
        row = {**asdict(made), "digest": _digest(secret)}
        try:
            with self._database.writing() as connection:
                connection.execute(insert(tokens).values(row))
                also(connection, made)
        except IntegrityError:
            raise ConflictError(
                f"there is a token named {name} already",
                hint="take another name, or remove that one first",
            ) from None
        return f"dsort_{token_id}_{secret}"

    def get(self, name: str) -> StoredToken:
        """The token of that name. ``NotFoundError``."""
        with self._database.reading() as connection:
            row = connection.execute(select(tokens).where(tokens.c.name == name)).first()
        if row is None:
            raise NotFoundError(f"there is no token named {name}")
        return _stored(row)

    def verify(self, text: str) -> Identity | None:
        """The identity of a token's holder; None if the text does not have the form of a token, or
        the token is unknown, was removed or has expired."""
        found = _TOKEN.fullmatch(text)
        if found is None:
            return None
        token_id, secret = found.groups()
        with self._database.reading() as connection:
            row = connection.execute(select(tokens).where(tokens.c.token_id == token_id)).first()
        if row is None:
            return None
        stored = _stored(row)
        if not hmac.compare_digest(_digest(secret), row.digest):
            return None
        if stored.expires_at is not None and stored.expires_at <= self._clock():
            return None
        return stored.identity

    def find(self, name: str) -> Identity | None:
        """What the owner ``name`` may do now; None if its token was removed or has expired."""
        with self._database.reading() as connection:
            row = connection.execute(
                select(tokens).where(tokens.c.name == name, self._alive())
            ).first()
        return _stored(row).identity if row else None

    def list(self) -> Sequence[StoredToken]:
        """All tokens by name, expired ones too."""
        with self._database.reading() as connection:
            rows = connection.execute(select(tokens).order_by(tokens.c.name)).all()
        return [_stored(row) for row in rows]

    def remove(
        self, name: str, *, also: Callable[[Connection], None] = lambda connection: None
    ) -> None:
        """Remove a token: it is refused from now on. ``NotFoundError``. ``also`` is called in the
        same transaction."""
        with self._database.writing() as connection:
            if not connection.execute(delete(tokens).where(tokens.c.name == name)).rowcount:
                raise NotFoundError(f"there is no token named {name}")
            also(connection)

    def any(self) -> bool:
        """Whether there is a token that is accepted."""
        with self._database.reading() as connection:
            return connection.execute(select(tokens).where(self._alive())).first() is not None

    def _alive(self) -> Any:
        return or_(tokens.c.expires_at.is_(None), tokens.c.expires_at > self._clock())


def _check(name: str, role: str, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    if not _NAME.match(name) or len(name) > NAME_CHARACTERS_MAX:
        raise SpecError(
            f"{name[:NAME_CHARACTERS_MAX]!r} cannot be a token's name",
            hint=f"letters, digits and . _ @ + -, at most {NAME_CHARACTERS_MAX}",
        )
    if name == ANYONE.name:
        raise SpecError(
            f"{name} is who everybody is to a service without tokens", hint="take another name"
        )
    if role not in ROLES:
        raise SpecError(f"there is no role {role[:40]!r}", hint=f"one of {', '.join(ROLES)}")
    if role == ADMIN and ("*" not in inputs or "*" not in outputs):
        raise SpecError(
            "an admin could make itself a token for any bucket, so patterns would not hold it back",
            hint="leave the patterns out, or take the role submitter",
        )


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def _stored(row: Row[Any]) -> StoredToken:
    return StoredToken(
        row.token_id,
        row.name,
        row.role,
        tuple(row.input_globs),
        tuple(row.output_globs),
        row.created_at,
        row.expires_at,
    )
