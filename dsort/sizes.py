"""Sizes as users write them: ``100MB`` is 100 x 1024 x 1024 bytes, as in AIStore's specs.

AIStore reads every suffix in binary units: ``KB`` and ``KiB`` are both 1024 bytes. dsort does the
same. Otherwise the same spec would give shards of other lengths.
"""

from __future__ import annotations

import re
from decimal import Decimal

from msgspec import Struct

__all__ = [
    "Bytes",
    "Percent",
    "agreed",
    "format_bytes",
    "format_count",
    "parse_quantity",
    "parse_size_bytes",
]

SIZE_BYTES_MAX = 2**63 - 1
_TEXT_MAX = 40  # characters; no sensible size is longer

_POWER = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(?:([KMGT])I?)?B?", re.IGNORECASE)
_PERCENT = re.compile(r"([0-9]+)%")
_FORMS = re.compile(r"\[([^|\]]*)\|([^|\]]*)\]")
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


class Percent(Struct, frozen=True):
    """A share of the memory that a job may use; ``percent`` is a whole number from 1 to 99."""

    percent: int

    def __str__(self) -> str:
        return f"{self.percent}%"


class Bytes(Struct, frozen=True):
    """A fixed amount of bytes, at least 1."""

    bytes: int

    def __str__(self) -> str:
        return format_bytes(self.bytes)


def format_count(count: int, one: str, many: str = "") -> str:
    """A count with its noun: ``1 record``, ``1,234 records``; with ``many`` also ``1 class is``,
    ``2 classes are``. ``many``: ``one`` and an s, if it is empty."""
    if count == 1:
        return f"1 {one}"
    return f"{count:,} {many or f'{one}s'}"


def agreed(text: str, count: int) -> str:
    """``text`` with the first form of each ``[one|many]`` for a count of 1, else the second."""
    return _FORMS.sub(r"\1" if count == 1 else r"\2", text)


def parse_size_bytes(text: str | int) -> int:
    """The number of bytes that ``text`` means: ``"100MB"`` is 104857600, ``"1.5k"`` is 1536.

    A number with one of ``B K KB KiB M MB MiB G GB GiB T TB TiB`` in any case, or a bare number of
    bytes. A number with a unit may have a fraction; the result is cut to whole bytes. A number of
    bytes must be whole. ``ValueError`` says what is wrong. Source of the rule: AIStore's ParseSize
    with IEC units.
    """
    if isinstance(text, int):
        return _in_range(text, text)
    stripped = text.strip()
    if re.match(r"-\s*[0-9.]", stripped):
        raise ValueError(f"must not be negative, but is {text!r}")
    match = _SIZE.fullmatch(stripped) if len(stripped) <= _TEXT_MAX else None
    if match is None:
        raise ValueError(f"{text!r} is not a size (expecting e.g. '100MB', '1.5GiB' or 4096)")
    number, unit = match.groups(default="")
    if not unit and "." in number:
        raise ValueError(f"{text!r} is not a whole number of bytes")
    return _in_range(int(Decimal(number) * 1024 ** _POWER[unit.upper()]), text)


def _in_range(size_bytes: int, text: str | int) -> int:
    if size_bytes < 0:
        raise ValueError(f"must not be negative, but is {text}")
    if size_bytes > SIZE_BYTES_MAX:
        raise ValueError(f"{text} is too large (at most {SIZE_BYTES_MAX} bytes)")
    return size_bytes


def format_bytes(size_bytes: int) -> str:
    """``size_bytes`` for a reader: ``"512 B"``, ``"100 MiB"``, ``"1.5 GiB"``.

    One digit after the point, none where the amount is a whole number of its unit.
    """
    if size_bytes < 0:
        return "-" + format_bytes(-size_bytes)
    power = 0
    # 1023.95 and more would be shown as 1024.0 of the smaller unit.
    while size_bytes * 20 >= 1024 ** (power + 1) * 20 - 1024**power and power < len(_UNITS) - 1:
        power += 1
    if size_bytes % 1024**power == 0:
        return f"{size_bytes // 1024**power} {_UNITS[power]}"
    return f"{size_bytes / 1024**power:.1f} {_UNITS[power]}"


def parse_quantity(text: str) -> Percent | Bytes:
    """An amount of memory: a size with its unit (``"10GB"``), or a share of the memory that the job
    may use (``"80%"``).

    Percentages are whole and lie between 0 and 100, both excluded. A bare number is refused, since
    it could mean either; so is an empty text. ``ValueError`` says what is wrong. Source of the
    rule: AIStore's ParseQuantity.
    """
    compact = "".join(text.split())
    percent = _PERCENT.fullmatch(compact)
    if percent is not None:
        digits = percent[1].lstrip("0")
        if not 1 <= len(digits) <= 2:
            raise ValueError(f"percent must be in the range (0, 100), but is {text!r}")
        return Percent(int(digits))
    if _SIZE.fullmatch(compact) is None or not compact[-1].isalpha():
        raise ValueError(f"{text!r} is not a quantity (expecting e.g. '80%' or '10GB')")
    size_bytes = parse_size_bytes(compact)
    if size_bytes == 0:
        raise ValueError(f"must be more than 0 bytes, but is {text!r}")
    return Bytes(size_bytes)
