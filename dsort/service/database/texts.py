"""The border to the database for texts: whatever text comes, it can be stored and read again.

A file name that is quoted in an error may hold bytes that are not UTF-8, and PostgreSQL has no NUL.
What users send is refused before, with its field named; what is left is stored as an escape, and
never keeps a job's end from being noted. JSON columns have the same border: the serializer that
``engine.py`` gives to SQLAlchemy.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Dialect, String, Text
from sqlalchemy.types import TypeDecorator, TypeEngine

from dsort.data.total_json import encodable

__all__ = ["AnyText"]


class AnyText(TypeDecorator[str]):
    """A column of text of at most ``length`` characters; None: of any length."""

    impl: TypeEngine[Any] | type[TypeEngine[Any]] = String
    cache_ok = True

    def __init__(self, length: int | None = None) -> None:
        super().__init__(length)
        self.length = length  # part of what SQLAlchemy tells types apart by
        if length is None:
            self.impl = Text()

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """The text as any database takes it."""
        return None if value is None else encodable(value).replace("\0", "\\x00")
