"""Small tables for notebooks: HTML with everything escaped, and no longer than a screen."""

from __future__ import annotations

import html
from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Final

from dsort.sizes import format_bytes

__all__ = ["ROWS_MAX", "fields_html", "members_html", "rows_html"]

ROWS_MAX: Final = 20
_TEXT_MAX: Final = 200
_IMAGE_BYTES_MAX: Final = 1 << 18
_IMAGES: Final = {
    b"\xff\xd8\xff": "jpeg",
    b"\x89PNG\r\n\x1a\n": "png",
    b"GIF8": "gif",
}
_STYLE: Final = "text-align:left;padding:0 1em 0 0;vertical-align:top;font-weight:normal"


def _text(value: object) -> str:
    text = str(value)
    if len(text) > _TEXT_MAX:
        text = f"{text[:_TEXT_MAX]}…"
    return html.escape(text.encode("utf-8", "replace").decode("utf-8"))


def fields_html(title: str, fields: Iterable[tuple[str, object]]) -> str:
    """A table of names and values; empty values are left out."""
    rows = "".join(
        f'<tr><th style="{_STYLE};opacity:.7">{_text(name)}</th>'
        f'<td style="{_STYLE}">{_text(value)}</td></tr>'
        for name, value in islice(fields, ROWS_MAX * 2)
        if value not in ("", None)
    )
    return f"<table><caption><b>{_text(title)}</b></caption>{rows}</table>"


def rows_html(header: Sequence[str], rows: Iterable[Sequence[object]], total: int) -> str:
    """A table of the first of ``total`` rows. Below it is the number of rows that it leaves out."""
    head = "".join(f'<th style="{_STYLE};opacity:.7">{_text(each)}</th>' for each in header)
    body = "".join(
        "<tr>" + "".join(f'<td style="{_STYLE}">{_text(each)}</td>' for each in row) + "</tr>"
        for row in islice(rows, ROWS_MAX)
    )
    more = f"<p>... and {total - ROWS_MAX:,} more</p>" if total > ROWS_MAX else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def members_html(
    title: str, members: Iterable[tuple[str, int]], read: Callable[[str, int], bytes]
) -> str:
    """The members of a record: ``(name, bytes)`` of each. ``read(name, bytes_max)``: returns the
    beginning of a member. The table shows small images, the beginning of texts, and a few bytes of
    other members in hexadecimal."""
    rows = []
    for name, size_bytes in islice(members, ROWS_MAX):
        begins = read(name, min(size_bytes, _IMAGE_BYTES_MAX))
        rows.append(
            f'<tr><td style="{_STYLE}">{_text(name)}</td>'
            f'<td style="{_STYLE}">{_text(format_bytes(size_bytes))}</td>'
            f'<td style="{_STYLE}">{_shown(begins, size_bytes)}</td></tr>'
        )
    return f"<table><caption><b>{_text(title)}</b></caption>{''.join(rows)}</table>"


def _shown(begins: bytes, size_bytes: int) -> str:
    kind = next((each for magic, each in _IMAGES.items() if begins.startswith(magic)), None)
    if kind is not None and len(begins) == size_bytes:
        data = b64encode(begins).decode("ascii")
        return f'<img style="max-height:8em;max-width:16em" src="data:image/{kind};base64,{data}">'
    head = begins[: 4 * _TEXT_MAX]
    text = head.decode("utf-8", "ignore")
    is_text = bool(text) and len(text.encode()) >= len(head) - 3 and "\0" not in text
    return _text(text) if is_text else _text(head[:16].hex(" "))
