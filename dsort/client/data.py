"""``client.data``: what is in the shards of the buckets that a token may read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import httpx

from dsort.client.transport import Query, Transport
from dsort.errors import ServiceError

__all__ = ["Data"]

PAGE = 200

Row = Mapping[str, Any]


class Data:
    """``client.data``: shards, their records, and the members of records, as on the service's page.
    Rows are mappings with the fields of the REST reference. ``bucket``: as in a spec; ``shard``:
    its name in the bucket; ``number``: of a record in its shard, from 0 on."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def shards(self, bucket: str, *, text: str = "") -> Iterator[Row]:
        """Shards with ``name``, ``size_bytes`` and ``records`` (None: not known), in order of their
        names, requested page by page. ``text``: only names that contain it."""
        cursor = ""
        while True:
            rows, cursor = self.page_of_shards(bucket, text, cursor)
            yield from rows
            if not cursor:
                return

    def page_of_shards(self, bucket: str, text: str, cursor: str) -> tuple[Sequence[Row], str]:
        """(shards from ``cursor`` on, the cursor of the next ones; "": there are no more)."""
        query: list[tuple[str, str | int]] = [("limit", PAGE)]
        query += [(name, value) for name, value in (("text", text), ("cursor", cursor)) if value]
        document = self._asked("shards", bucket, "", query)
        return self._rows(document, "shards"), document.get("next_cursor") or ""

    def objects(self, bucket: str, *, prefix: str = "") -> Iterator[Row]:
        """All objects, shards or not, with ``name`` and ``size_bytes``, in byte order of their
        names, requested page by page. ``prefix``: only names that begin with it."""
        page: list[tuple[str, str | int]] = []
        while True:
            document = self._asked("buckets", bucket, "", [("prefix", prefix), *page])
            for each in self._rows(document, "entries"):
                yield {"name": each["name"], "size_bytes": int(each["size"])}
            after = document.get("continuation_token")
            if not after:
                return
            page = [("continuation_token", after), ("uuid", document.get("uuid", ""))]

    def whole(self, bucket: str, name: str) -> Iterator[bytes]:
        """The bytes of an object, in pieces."""
        path = _path("objects", bucket, name)
        try:
            with self._transport.stream(path, query=(), headers={"Accept": "*/*"}) as answer:
                if not answer.is_success:
                    raise self._transport.error(answer)
                yield from answer.iter_bytes()
        except httpx.TransportError as error:
            raise self._transport.failure(error) from error

    def garbage(self, bucket: str, *, older_than_s: float = 86_400.0) -> Sequence[Row]:
        """The files that interrupted jobs left in a bucket. For admins."""
        query: list[tuple[str, str | int]] = [("older_than_s", str(older_than_s))]
        return self._rows(self._asked("garbage", bucket, "", query), "garbage")

    def records(self, bucket: str, shard: str, *, first: int = 0, text: str = "") -> Iterator[Row]:
        """Records with ``number``, ``key``, ``members`` and ``size_bytes``, from number ``first``
        on, page by page. ``text``: only keys that contain it."""
        after: int | None = first
        while after is not None:
            rows, after = self.page_of_records(bucket, shard, after, text)
            yield from rows

    def page_of_records(
        self, bucket: str, shard: str, first: int, text: str
    ) -> tuple[Sequence[Row], int | None]:
        """(records from number ``first`` on, the number of the record that the next ones begin
        with)."""
        query: list[tuple[str, str | int]] = [("limit", PAGE), ("first", first)]
        document = self._asked("records", bucket, shard, [*query, *[("text", text)] * bool(text)])
        return self._rows(document, "records"), document.get("next_number")

    def show(self, bucket: str, shard: str, *numbers: int) -> Sequence[Row]:
        """These records, 20 at most, with previews of their members: small pictures whole, the
        beginning of texts and of everything else."""
        query = [("number", number) for number in numbers]
        return self._rows(self._asked("samples", bucket, shard, query), "records")

    def sample(self, bucket: str, shard: str, count: int, *, seed: str = "") -> Sequence[Row]:
        """``count`` records at random, 20 at most, in the form of ``show``."""
        query: list[tuple[str, str | int]] = [("random", count), ("seed", seed)]
        return self._rows(self._asked("samples", bucket, shard, query), "records")

    def changed(self, bucket: str, shard: str, number: int, transform: str) -> Row:
        """A record ``before``, and what the named transform makes of it: ``after``, a list. Nothing
        is written. For submitters."""
        query: list[tuple[str, str | int]] = [("number", number), ("transform", transform)]
        return self._asked("changed", bucket, shard, query)

    def read(self, bucket: str, shard: str, number: int, member: int = 0) -> bytes:
        """The bytes of one member of a record, by its number in the record; 64 MiB at most."""
        query: list[tuple[str, str | int]] = [("number", number), ("member", member)]
        path = _path("members", bucket, shard)
        return self._transport.request("GET", path, query=query, repeatable=True).content

    def _asked(self, what: str, bucket: str, shard: str, query: Query) -> Row:
        path = _path(what, bucket, shard)
        document = self._transport.document("GET", path, query=query, repeatable=True)
        if not isinstance(document, Mapping):
            raise ServiceError(f"what {self._transport.url} answers is no page of {what}")
        return document

    def _rows(self, document: Row, name: str) -> Sequence[Row]:
        rows = document.get(name)
        if not isinstance(rows, list):
            raise ServiceError(f"the service's answer has no {name}")
        return rows


def _path(what: str, bucket: str, shard: str) -> str:
    behind = f"/{quote(shard)}" if shard else ""
    return f"/v1/{what}/{quote(bucket, safe='')}{behind}"
