"""Tokens and identities: the sender of a request, and its rights.

A token is ``dsort_<id>_<secret>``; the database holds the id and the SHA-256 of the secret. The
secret is 192 random bits, which a slow hash would not make harder to guess. Each request reads the
token's row, so a removed token is refused at once."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import asdict
from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Table,
    Text,
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
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from dsort.errors import (
    ConflictError,
    NotFoundError,
    SpecError,
    SpecProblem,
)
from dsort.service.database import tables
from dsort.service.database.engine import Database
from dsort.service.database.tables import LINE_END, split_uris, token_buckets, tokens
from dsort.service.jobs.rows import rfc3339
from dsort.storage.ref import BucketRef

VIEWER, SUBMITTER, ADMIN = "viewer", "submitter", "admin"
ROLES = (VIEWER, SUBMITTER, ADMIN)  # each role has all rights of the roles before it
BUCKETS_MAX = 100
BUCKET_CHARACTERS_MAX = 512


class HasBuckets(Protocol):
    """The buckets of a job or a schedule."""

    @property
    def input_uri(self) -> str:
        """The URI of the bucket that the job or schedule reads."""

    @property
    def output_uri(self) -> str:
        """The URI of the bucket that the job or schedule writes to."""


class Identity(Struct, frozen=True):
    """The sender of a request. ``name``: the name of the token, to which the jobs and schedules of
    the sender belong.

    A *viewer* reads; a *submitter* also submits jobs and schedules, and changes its own jobs and
    schedules; an *admin* changes all jobs and schedules, and manages tokens. Every identity sees
    only jobs whose two buckets its token allows: the input's URI fits one of ``input_buckets``, the
    output's URI one of ``output_buckets``. An entry is a URI, or a text with a star at its end,
    which stands for all URIs that begin with the text: ``s3://team-a/*`` does not include the
    bucket ``s3://team-a`` itself. The URI of a directory is ``file://`` and its path with all links
    resolved.
    """

    name: str
    role: str  # viewer | submitter | admin
    input_buckets: tuple[str, ...] = ("*",)
    output_buckets: tuple[str, ...] = ("*",)

    def at_least(self, role: str) -> bool:
        """Whether the identity has all rights of ``role``."""
        return ROLES.index(self.role) >= ROLES.index(role)

    def may_read(self, uri: str) -> bool:
        """Whether the bucket may be an input; with several buckets (``joined_uris``), whether all
        may."""
        return all(matches(self.input_buckets, each) for each in split_uris(uri))

    def may_write(self, uri: str) -> bool:
        """Whether the bucket may be an output; with several buckets (``joined_uris``), whether all
        may."""
        return all(matches(self.output_buckets, each) for each in split_uris(uri))

    def may_see(self, thing: HasBuckets) -> bool:
        """Whether the job or schedule is visible to the identity."""
        return self.may_read(thing.input_uri) and self.may_write(thing.output_uri)

    def may_change(self, owner: str) -> bool:
        """Whether the identity may stop, resume or remove things that it sees and that ``owner``
        owns."""
        return self.role == ADMIN or (self.role == SUBMITTER and owner == self.name)


ANYONE = Identity("anyone", ADMIN)
"""The sender of requests to a service that requires no tokens."""


def matches(buckets: Iterable[str], uri: str) -> bool:
    """Whether ``uri`` is one of ``buckets``, or begins with the text before the star of one of
    ``buckets``."""
    try:
        uri.encode()
    except UnicodeEncodeError:  # a lone surrogate: no bucket has such a name
        return False
    return any(uri.startswith(each[:-1]) if each.endswith("*") else uri == each for each in buckets)


def visible(identity: Identity, table: Table = tables.jobs) -> ColumnElement[bool]:
    """``may_see`` as a condition on the rows of ``jobs`` or of ``schedules``."""
    return and_(
        _all_match(table.c.input_uri, identity.input_buckets),
        _all_match(table.c.output_uri, identity.output_buckets),
    )


def _all_match(column: ColumnElement[str], buckets: Sequence[str]) -> ColumnElement[bool]:
    """``_matches`` for each URI in a text of several."""
    if "*" in buckets:
        return true()
    each = rows_of_uris(column).table_valued("value")
    other = select(1).select_from(each).where(not_(_matches(each.c.value, buckets))).exists()
    # Most rows have one URI, and need no subquery.
    return case((column.contains(LINE_END), not_(other)), else_=_matches(column, buckets))


def _matches(column: ColumnElement[str], buckets: Sequence[str]) -> ColumnElement[bool]:
    conditions = [
        column.startswith(each[:-1], autoescape=True) if each.endswith("*") else column == each
        for each in buckets
    ]
    return or_(false(), *conditions)


_MARK = 0xE000  # for private use: ``joined_uris`` encodes it


class rows_of_uris(FunctionElement[Any]):  # noqa: N801, a function of SQL
    """A text of several URIs as rows with one column, ``value``."""

    name = "rows_of_uris"
    inherit_cache = True
    type = Text()

    def __init__(self, text: ColumnElement[str]) -> None:
        super().__init__(text)


@compiles(rows_of_uris, "sqlite")
def _in_sqlite(element: rows_of_uris, compiler: SQLCompiler, **options: Any) -> str:
    text = compiler.process(element.clauses, **options)
    # json_quote would write a line end as two characters, which may occur in a text, too.
    quoted = f"json_quote(replace({text}, char(10), char({_MARK})))"
    return f"""json_each('[' || replace({quoted}, char({_MARK}), '","') || ']')"""


@compiles(rows_of_uris, "postgresql")
def _in_postgresql(element: rows_of_uris, compiler: SQLCompiler, **options: Any) -> str:
    text = compiler.process(element.clauses, **options)
    return f"jsonb_array_elements_text(to_jsonb(string_to_array({text}, chr(10))))"


def checked_buckets(texts: Iterable[str], *, path: str = "buckets") -> tuple[str, ...]:
    """The buckets that a user gave, checked and without duplicates; an absolute path stands for the
    URI of that directory. ``SpecError`` with all problems."""
    found: list[str] = []
    problems: list[SpecProblem] = []
    for text in texts:
        bucket = BucketRef("file", text).uri if text.startswith("/") else text
        mistake = _mistake(bucket)
        if mistake:
            problems.append(SpecProblem(path, f"{text[:80]!r}: {mistake}", _BUCKET_HINT))
        found.append(bucket)
    if len(found) > BUCKETS_MAX:
        problems.append(SpecProblem(path, f"more than {BUCKETS_MAX} buckets"))
    if problems:
        raise SpecError(problems)
    return tuple(dict.fromkeys(found))


_BUCKET_HINT = "for example 's3://team-a', 's3://team-a/*' for all below it, or '*' for all"


def _mistake(bucket: str) -> str:
    if not bucket.isprintable():
        return "a bucket consists of printable characters"
    if len(bucket) > BUCKET_CHARACTERS_MAX:
        return f"a bucket has at most {BUCKET_CHARACTERS_MAX} characters"
    if "*" in bucket[:-1]:
        return "a star stands only at the end"
    if "?" in bucket:
        return "a question mark is no wildcard, and in no URI of a bucket"
    if "://" not in bucket and bucket != "*":
        return "a bucket is a URI, or the beginning of URIs and a star"
    return ""


NAME_CHARACTERS_MAX = 128
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._@+-]*$"

_TOKEN = re.compile(r"dsort_([0-9a-f]{12})_([0-9a-f]{48})")
_NAME = re.compile(NAME_PATTERN.removesuffix("$") + r"\Z")


class StoredToken(Struct, frozen=True):
    """A token without its secret, as lists show it. Times are seconds since 1970."""

    token_id: str
    name: str
    role: str
    input_buckets: tuple[str, ...]
    output_buckets: tuple[str, ...]
    created_at: float
    expires_at: float | None

    @property
    def identity(self) -> Identity:
        """The identity of requests with this token."""
        return Identity(self.name, self.role, self.input_buckets, self.output_buckets)

    def view(self) -> dict[str, Any]:
        """The token for REST and ``dsort token ls --json``."""
        return {"name": self.name, **self.details()}

    def details(self) -> dict[str, Any]:
        """The properties of the token besides its name, for the audit trail."""
        return {
            "role": self.role,
            "input_buckets": list(self.input_buckets),
            "output_buckets": list(self.output_buckets),
            "created_at": rfc3339(self.created_at),
            "expires_at": rfc3339(self.expires_at),
        }


class TokenStore:
    """The tokens of a service. Safe to use from many threads. ``clock``: seconds since 1970."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    def add(
        self,
        name: str,
        role: str,
        input_buckets: Sequence[str] = ("*",),
        output_buckets: Sequence[str] = ("*",),
        *,
        expires_at: float | None = None,
        also: Callable[[Connection, StoredToken], None] = lambda connection, made: None,
    ) -> str:
        """Make a token; returns the text of the token, which the service does not store.
        ``SpecError`` for an invalid name, role or bucket; ``ConflictError`` if the name is taken.
        ``also`` is called in the same transaction."""
        inputs = checked_buckets(input_buckets, path="input_buckets")
        outputs = checked_buckets(output_buckets, path="output_buckets")
        _check(name, role, inputs, outputs)
        if expires_at is not None and expires_at <= self._clock():
            raise SpecError("the token would have expired already")
        token_id, secret = secrets.token_hex(6), secrets.token_hex(24)
        made = StoredToken(token_id, name, role, inputs, outputs, self._clock(), expires_at)
        try:
            with self._database.writing() as connection:
                _insert(connection, made, _digest(secret))
                also(connection, made)
        except IntegrityError:
            raise ConflictError(
                f"there is a token named {name} already",
                hint="take another name, or remove that token first",
            ) from None
        return f"dsort_{token_id}_{secret}"

    def get(self, name: str) -> StoredToken:
        """The token of that name. ``NotFoundError``."""
        found = self._read(tokens.c.name == name)
        if not found:
            raise NotFoundError(f"there is no token named {name}")
        return found[0][0]

    def verify(self, text: str) -> Identity | None:
        """The identity of a token's holder. None if the text is no token, or if the token is
        unknown, was removed or has expired."""
        parts = _TOKEN.fullmatch(text)
        if parts is None:
            return None
        token_id, secret = parts.groups()
        found = self._read(tokens.c.token_id == token_id)
        if not found:
            return None
        stored, digest = found[0]
        if not hmac.compare_digest(_digest(secret), digest):
            return None
        if stored.expires_at is not None and stored.expires_at <= self._clock():
            return None
        return stored.identity

    def find(self, name: str) -> Identity | None:
        """The present rights of the owner ``name``; None if the owner's token was removed or has
        expired."""
        found = self._read(tokens.c.name == name, self._alive())
        return found[0][0].identity if found else None

    def list(self) -> Sequence[StoredToken]:
        """All tokens by name, expired ones too."""
        return [stored for stored, _ in self._read()]

    def remove(
        self, name: str, *, also: Callable[[Connection], None] = lambda connection: None
    ) -> None:
        """Remove a token, which is refused from now on. ``NotFoundError``. ``also`` is called in
        the same transaction."""
        with self._database.writing() as connection:
            if not connection.execute(delete(tokens).where(tokens.c.name == name)).rowcount:
                raise NotFoundError(f"there is no token named {name}")
            also(connection)

    def any(self) -> bool:
        """Whether there is a token that is accepted."""
        return bool(self._database.rows(select(tokens).where(self._alive()).limit(1)))

    def _read(self, *conditions: ColumnElement[bool]) -> Sequence[tuple[StoredToken, bytes]]:
        """The tokens by name, each with the digest of its secret."""
        query = (
            select(tokens, token_buckets.c.side, token_buckets.c.prefix, token_buckets.c.is_whole)
            .outerjoin(token_buckets)
            .where(*conditions)
            .order_by(tokens.c.name, token_buckets.c.place)
        )
        rows = self._database.rows(query)
        return [_stored(list(those)) for _, those in groupby(rows, lambda row: row.token_id)]

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
            f"{name} is the name of all clients of a service without tokens",
            hint="take another name",
        )
    if role not in ROLES:
        raise SpecError(f"there is no role {role[:40]!r}", hint=f"one of {', '.join(ROLES)}")
    if role == ADMIN and ("*" not in inputs or "*" not in outputs):
        raise SpecError(
            "an admin can make a token for any bucket, so buckets would not limit an admin",
            hint="leave the buckets out, or take the role submitter",
        )


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def _insert(connection: Connection, made: StoredToken, digest: bytes) -> None:
    row = {**asdict(made), "digest": digest}
    sides = {"input": row.pop("input_buckets"), "output": row.pop("output_buckets")}
    connection.execute(insert(tokens).values(row))
    buckets = [
        {
            "token_id": made.token_id,
            "side": side,
            "place": place,
            "prefix": bucket.removesuffix("*"),
            "is_whole": not bucket.endswith("*"),
        }
        for side, buckets in sides.items()
        for place, bucket in enumerate(buckets)
    ]
    if buckets:
        connection.execute(insert(token_buckets), buckets)


def _stored(rows: Sequence[Row[Any]]) -> tuple[StoredToken, bytes]:
    """The token in ``rows``: each row has one bucket of the token."""
    one = rows[0]
    sides: dict[str, list[str]] = {"input": [], "output": []}
    for row in rows:
        if row.side is not None:  # a token without buckets has one row, whose side is None
            sides[row.side].append(row.prefix + ("" if row.is_whole else "*"))
    stored = StoredToken(
        one.token_id,
        one.name,
        one.role,
        tuple(sides["input"]),
        tuple(sides["output"]),
        one.created_at,
        one.expires_at,
    )
    return stored, one.digest
