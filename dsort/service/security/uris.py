"""The buckets that a job reads, or writes to, in the one text of a job's row: canonical URIs, one
in each line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Text
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from dsort.storage.addresses import parse_address

LINE_END = "\n"
_MARK = 0xE000  # for private use: ``joined_uris`` encodes it


def joined_uris(uris: Sequence[str]) -> str:
    """All of ``uris``, without duplicates. Line ends are encoded, and if there are several URIs
    also all characters that cannot be printed."""
    return LINE_END.join(dict.fromkeys(_line(uri, alone=len(uris) == 1) for uri in uris))


def split_uris(text: str) -> list[str]:
    """The URIs in a text that ``joined_uris`` made."""
    return text.split(LINE_END)


def paths_of(uris: Iterable[str]) -> list[str]:
    """The paths of those URIs that belong to directories and files."""
    return [parse_address(uri).path for uri in uris if uri.startswith("file://")]


def main_uri(text: str) -> str:
    """The first URI: for outputs, the bucket that has lease, journal and manifest."""
    return split_uris(text)[0]


def shown_uris(text: str) -> str:
    """The URIs side by side, for people to read."""
    return text.replace(LINE_END, ", ")


def _line(uri: str, *, alone: bool) -> str:
    if alone:
        return uri.replace(LINE_END, "%0A")
    return "".join(each if each.isprintable() else f"%{ord(each):02X}" for each in uri)


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
