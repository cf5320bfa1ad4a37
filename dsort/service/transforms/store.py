"""The named transforms of a service, as rows: a version never changes, and its number is never used
again. A removed version stays as a row without a definition."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from sqlalchemy import Connection, Row, insert, select, update
from sqlalchemy.exc import IntegrityError

from dsort.errors import ConflictError, NotFoundError
from dsort.service.database.engine import Database
from dsort.service.database.tables import transforms
from dsort.spec.load import read_transform
from dsort.spec.named import VERSION_MAX, NamedTransform, parse_use

__all__ = ["TransformPage", "TransformStore"]


class TransformPage(Struct, frozen=True):
    """Versions, the newest first. ``next_number``: pass it as ``before`` to get the next page."""

    versions: Sequence[NamedTransform]
    next_number: int | None


class TransformStore:
    """The transforms of a service. Safe to use from many threads."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    def put(
        self,
        name: str,
        fields: Mapping[str, Any],
        owner: str,
        *,
        also: Callable[[Connection, NamedTransform], None] = lambda connection, made: None,
    ) -> tuple[NamedTransform, bool]:
        """(the newest version of ``name``, which has the ``fields``; whether it is new).
        ``SpecError`` if ``fields`` are no transform, ``ConflictError`` if another request adds a
        version at the same moment. ``also`` is called in the same transaction."""
        parse_use(name)
        kept, transform = read_transform(fields)
        columns = transforms.c
        try:
            with self._database.writing() as connection:
                newest = connection.execute(
                    select(transforms)
                    .where(columns.name == name)
                    .order_by(columns.version.desc())
                    .limit(1)
                ).first()
                if newest is not None and newest.definition == kept:
                    return _named(newest), False
                version = 1 if newest is None else newest.version + 1
                if version > VERSION_MAX:
                    raise ConflictError(f"there are no more numbers for versions of {name}")
                digest, now_s = transform.steps_digest(), self._clock()
                made = NamedTransform(name, version, digest, kept, now_s, owner)
                connection.execute(
                    insert(transforms).values(
                        name=name,
                        version=version,
                        digest=digest,
                        definition=kept,
                        created_at=now_s,
                        created_by=owner,
                    )
                )
                also(connection, made)
        except IntegrityError:
            raise ConflictError(
                f"somebody else adds a version of {name} at this moment", hint="try again"
            ) from None
        return made, True

    def find(self, name: str, version: int | None = None) -> NamedTransform:
        """Version ``version`` of ``name``; None: the newest that is not removed.
        ``NotFoundError``."""
        columns = transforms.c
        query = select(transforms).where(columns.name == name, columns.removed_at.is_(None))
        if version is not None:
            query = query.where(columns.version == version)
        with self._database.reading() as connection:
            row = connection.execute(query.order_by(columns.version.desc()).limit(1)).first()
        if row is None:
            raise _none_of(name, version)
        return _named(row)

    def versions(self, name: str) -> list[int]:
        """The numbers of all versions that are not removed."""
        columns = transforms.c
        query = select(columns.version).where(columns.name == name, columns.removed_at.is_(None))
        with self._database.reading() as connection:
            return list(connection.scalars(query.order_by(columns.version)))

    def list(self, *, limit: int, before: int | None = None) -> TransformPage:
        """Versions that are not removed, ``limit`` at most, of the rows below ``before``."""
        columns = transforms.c
        query = select(transforms).where(columns.removed_at.is_(None))
        if before is not None:
            query = query.where(columns.number < before)
        query = query.order_by(columns.number.desc()).limit(limit + 1)
        with self._database.reading() as connection:
            rows = connection.execute(query).all()
        following = rows[limit - 1].number if len(rows) > limit else None
        return TransformPage([_named(row) for row in rows[:limit]], following)

    def remove(
        self,
        name: str,
        version: int | None = None,
        *,
        also: Callable[[Connection], None] = lambda connection: None,
    ) -> None:
        """Remove a version, or all if ``version`` is None: no job that begins from now on can use
        it. ``NotFoundError``. ``also`` is called in the same transaction."""
        columns = transforms.c
        change = update(transforms).where(columns.name == name, columns.removed_at.is_(None))
        if version is not None:
            change = change.where(columns.version == version)
        with self._database.writing() as connection:
            gone = {"definition": None, "removed_at": self._clock()}
            if not connection.execute(change.values(gone)).rowcount:
                raise _none_of(name, version)
            also(connection)


def _named(row: Row[Any]) -> NamedTransform:
    return NamedTransform(
        row.name, row.version, row.digest, row.definition, row.created_at, row.created_by
    )


def _none_of(name: str, version: int | None) -> NotFoundError:
    use = name if version is None else f"{name}@{version}"
    return NotFoundError(
        f"there is no transform {use}", hint="GET /v1/transforms lists those there are"
    )
