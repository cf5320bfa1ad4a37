"""The step ``rekey``: new record keys, by a template."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from annotated_types import MinLen

from dsort.errors import TransformError
from dsort.naming.names import archive_extension, readable
from dsort.order.base import OptionError
from dsort.transforms.base import Step

if TYPE_CHECKING:
    from dsort.order.table import RecordTable

__all__ = ["Rekey"]

PLACES = ("key", "base", "dir", "shard", "n")
_PLACE = re.compile(r"\{([^{}:]*)(?::(0?\d{1,2})d)?\}|\{\{|\}\}")


@dataclass(frozen=True, slots=True)
class Rekey(Step):
    """Keys by ``template``: text with ``{key}`` (the key it has), ``{dir}`` and ``{base}`` (what is
    before and after its last slash), ``{shard}`` (the input shard without suffix) and ``{n}``,
    ``{n:06d}`` (the number of the record in its shard, from 0 on)."""

    template: str

    kind: ClassVar[str] = "rekey"
    summary: ClassVar[str] = (
        "Give each record a new key, by a template: {key}, {dir}, {base}, {shard}, {n:06d}."
    )
    options_type: ClassVar[Any] = Annotated[str, MinLen(1)]

    @classmethod
    def of(cls, options: str) -> Rekey:
        """The step with this template."""
        _pieces(options)
        return cls(options)

    @property
    def options(self) -> str:
        """The template."""
        return self.template

    def apply(self, records: RecordTable) -> RecordTable:
        """``records`` with their new keys."""
        from dsort.data.columns import BytesColumn

        pieces = _pieces(self.template)
        shard = records.shard.removesuffix(archive_extension(records.shard) or "")
        shard_name = shard.encode("utf-8", "surrogateescape")
        new_keys = []
        for number, key in enumerate(records.keys.tolist()):
            directory, _, base = key.rpartition(b"/")
            values = {"key": key, "dir": directory, "base": base, "shard": shard_name}
            new_keys.append(
                b"".join(
                    text
                    if not place
                    else (b"%0*d" % (width, number) if place == "n" else values[place])
                    for text, place, width in pieces
                )
            )
        _check(records, new_keys)
        return records.with_keys(BytesColumn.of(new_keys))


def _pieces(template: str) -> list[tuple[bytes, str, int]]:
    """(text, "", 0) or (b"", a place, how many digits) in order. ``OptionError``."""
    found, at = [], 0
    for match in _PLACE.finditer(template):
        found.append((_text(template[at : match.start()]), "", 0))
        at = match.end()
        if match[0] in ("{{", "}}"):
            found.append((match[0][:1].encode(), "", 0))
            continue
        place, width = match[1], match[2]
        if place not in PLACES or (width and place != "n"):
            known = ", ".join(f"{{{name}}}" for name in PLACES)
            raise OptionError(f"has {match[0]}, which means nothing here", f"there are {known}")
        found.append((b"", place, int(width or 0)))
    return [*found, (_text(template[at:]), "", 0)]


def _text(text: str) -> bytes:
    if "{" in text or "}" in text:
        raise OptionError("has a brace without its partner", "write {{ or }} for a brace itself")
    if "\0" in text:
        raise OptionError("has a zero byte in it")
    return text.encode("utf-8", "surrogateescape")


def _check(records: RecordTable, new_keys: list[bytes]) -> None:
    """``TransformError`` for a key whose members would be read as another record's."""
    for number, key in enumerate(new_keys):
        base = key.rpartition(b"/")[2]
        problem = "has no name behind its last slash" if not base else ""
        if b"." in base:
            problem = "has a dot, behind which its extension would begin"
        if key.startswith(b"/") or b".." in key.split(b"/"):
            problem = "leads out of the directory that it is unpacked in"
        if problem:
            raise TransformError(
                f"rekey: the new key {readable(key)} of record {readable(records.keys[number])} "
                f"of shard {records.shard} {problem}",
                hint="{shard} and {dir} may have dots: put a slash behind them",
            )
