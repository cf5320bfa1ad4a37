"""Who asks, and what they may do: roles, and patterns of the buckets that they may use.

A *viewer* reads, a *submitter* also submits jobs and schedules and changes its own, an *admin* does
everything to all of them, and sees to tokens. Besides, everybody sees only jobs whose buckets both
fit: the input's URI one of ``input_globs``, the output's one of ``output_globs``.

In a pattern ``*`` is any text, slashes too, and ``?`` any one character; nothing else is special,
and a pattern stands for whole URIs: ``s3://team-a/*`` is not the bucket ``s3://team-a`` itself. The
URI of a directory is ``file://`` and its path with all links resolved.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from sqlalchemy import ColumnElement, Table, and_, false, or_, true

from dsort.errors import SpecError, SpecProblem
from dsort.naming.patterns import wildcard_match
from dsort.service.database import tables

__all__ = [
    "ADMIN",
    "ANYONE",
    "ROLES",
    "SUBMITTER",
    "VIEWER",
    "HasBuckets",
    "Identity",
    "bucket_globs",
    "matches",
    "visible",
]

VIEWER, SUBMITTER, ADMIN = "viewer", "submitter", "admin"
ROLES = (VIEWER, SUBMITTER, ADMIN)  # each may do what those before it may
GLOBS_MAX = 100
GLOB_CHARACTERS_MAX = 512
GLOB_STARS_MAX = 8
_LIKE_ESCAPE = "!"


class HasBuckets(Protocol):
    """A job or a schedule, as far as its buckets go."""

    @property
    def input_uri(self) -> str:
        """Where it reads."""

    @property
    def output_uri(self) -> str:
        """Where it writes."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Whoever sent a request. ``name``: the token's; jobs and schedules that it makes belong to
    that name."""

    name: str
    role: str  # viewer | submitter | admin
    input_globs: tuple[str, ...] = ("*",)
    output_globs: tuple[str, ...] = ("*",)

    def at_least(self, role: str) -> bool:
        """Whether this one may do all that ``role`` may."""
        return ROLES.index(self.role) >= ROLES.index(role)

    def may_read(self, uri: str) -> bool:
        """Whether the bucket may be an input."""
        return matches(self.input_globs, uri)

    def may_write(self, uri: str) -> bool:
        """Whether the bucket may be an output."""
        return matches(self.output_globs, uri)

    def may_see(self, thing: HasBuckets) -> bool:
        """Whether the job or schedule is there at all, for this one."""
        return self.may_read(thing.input_uri) and self.may_write(thing.output_uri)

    def may_submit(self, thing: HasBuckets) -> bool:
        """Whether this one may submit a job or schedule with these buckets."""
        return self.at_least(SUBMITTER) and self.may_see(thing)

    def may_change(self, owner: str) -> bool:
        """Whether this one may stop, resume, remove, ... what it sees and ``owner`` owns."""
        return self.role == ADMIN or (self.role == SUBMITTER and owner == self.name)


ANYONE = Identity("anyone", ADMIN)
"""Who sends requests to a service that asks nobody who they are."""


def matches(globs: Iterable[str], uri: str) -> bool:
    """Whether one of the patterns stands for ``uri``; in time linear in its length."""
    try:
        uri.encode()
    except UnicodeEncodeError:  # half a character: no bucket has such a name
        return False
    return any(wildcard_match(glob, uri) for glob in globs)


def visible(identity: Identity, table: Table = tables.jobs) -> ColumnElement[bool]:
    """``may_see`` as a condition on the rows of ``jobs`` or of ``schedules``."""
    return and_(
        _like(table.c.input_uri, identity.input_globs),
        _like(table.c.output_uri, identity.output_globs),
    )


def _like(column: ColumnElement[str], globs: Sequence[str]) -> ColumnElement[bool]:
    if "*" in globs:
        return true()
    escaped = {c: _LIKE_ESCAPE + c for c in "%_" + _LIKE_ESCAPE} | {"*": "%", "?": "_"}
    table = str.maketrans(escaped)
    likes = [column.like(glob.translate(table), escape=_LIKE_ESCAPE) for glob in globs]
    return or_(false(), *likes)


def bucket_globs(texts: Iterable[str], *, path: str = "buckets") -> tuple[str, ...]:
    """The patterns that a user gave, checked and each once; an absolute path stands for the URI of
    that directory. ``SpecError`` with all problems."""
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
    # As BucketRef.uri has it, less its %3F: here a ? is any one character.
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
