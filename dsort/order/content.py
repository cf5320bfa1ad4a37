"""The algorithm ``content``: records are sorted by the content of one member of each record.

White space around a key is ignored (a ``.cls`` file usually ends in a newline), except around
strings if the spec requires it. Integers have any length up to ``DIGITS_MAX``; floats may be
anything Python and JSON call a float except NaN, which has no place in an order.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, cast

from dsort.errors import ContentKeyError
from dsort.naming.names import readable, shortened
from dsort.option_fields import Check, OptionError, option
from dsort.order.base import Algorithm, Record, SortValue, decreasing_option

if TYPE_CHECKING:
    from dsort.data.index import SortKeys
    from dsort.data.json_pointer import JsonPointer
    from dsort.data.record_table import RecordTable

DIGITS_MAX: Final = 4096
"""The most digits of an integer, without leading zeros: the time to read one grows with the square
of its length."""

SCALAR: Final = "scalar"
"""The type of keys that may be anything except an object or a list: their text is the key."""

_SHORT_MAX: Final = 18  # in characters; Python parses this many digits at once
_INTEGER = r"([+-]?)([0-9]+)"
_DECIMAL = r"(-?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]{1,9}))?"


class ContentValueError(ValueError):
    """A content that is no key of the requested type; the text has the reason."""


def content_value(
    content: bytes, kind: str, json_field: str | None, *, strip: bool = True
) -> int | float | bytes:
    """The key in ``content``: an int, a float or bytes, depending on ``kind``. ``strip``: white
    space around strings is removed.

    ``ContentValueError`` if the content is not a key of this kind; ``KeyError`` if the JSON has no
    field of this name.
    """
    if json_field is not None:
        try:
            return _typed(_json_value(content, json_field), kind, strip=strip)
        except ContentValueError as error:
            raise ContentValueError(f"field {shortened(json_field)}: {error}") from None
    if kind in ("string", SCALAR):
        return content.strip() if strip else content
    text = content.strip()
    try:
        shown = text.decode("ascii")
        if "_" in shown:  # Python would accept its digit grouping, which no file format has
            raise ValueError(shown)
        number = _integer(shown) if kind == "int" else _checked(float(shown))
    except ContentValueError:
        raise
    except ValueError:
        raise ContentValueError(f"{_shown(text)} is not {_article(kind)}") from None
    return number


_RANK: Final = {"first": 0, "last": 2}
_STRIP_MISPLACED: Final = (
    "false has no meaning here",
    "strip is for kind content with content_key_type string",
)


def _extension(text: str) -> str:
    extension = text.strip()
    if not extension.startswith(".") or extension == "." or "/" in extension:
        raise OptionError(
            f'"{text}" is no member extension', 'use a dot and a name, e.g. ".cls" or ".meta.json"'
        )
    return extension


def _json_path(text: str) -> str:
    if not text.startswith("/") and not all(text.split(".")):
        raise OptionError(
            f'"{text}" has an empty part', 'put dots between names, e.g. "a.b", or use "/a/b"'
        )
    return text


def _only_strings_are_not_stripped(
    options: Mapping[str, Any],
) -> Iterator[tuple[str, str, str]]:
    if not options["strip"] and options["content_key_type"] not in (None, "string"):
        yield "strip", *_STRIP_MISPLACED


def _bins(edges: Sequence[int | float]) -> Sequence[int | float]:
    hint = "an edge is where one bin ends and the next begins: [128, 512, 2048]"
    if not edges:
        raise OptionError("has no edges", hint)
    for edge in edges:
        if not math.isfinite(edge):
            raise OptionError(f"{edge} is no edge", hint)
    if any(after <= before for before, after in pairwise(edges)):
        raise OptionError("edges have to ascend", hint)
    return edges


def _only_numbers_have_bins(options: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    if options["bins"] is not None and options["content_key_type"] == "string":
        yield "bins", "strings have no bins", "bins are for content_key_type int or float"


class Content(Algorithm, frozen=True):
    """By the content of the member ``extension`` (the whole extension, with its dot)."""

    kind: ClassVar[str] = "content"
    summary: ClassVar[str] = "by the content of one member of each record"
    words: ClassVar[str] = "content"
    is_sort_key: ClassVar[bool] = True
    joins_by_places: ClassVar[bool] = True
    noun: ClassVar[str] = "content key"
    missing_hint: ClassVar[str] = (
        "set algorithm.content_key_missing to first or last to keep such records"
    )
    wrong_hint: ClassVar[str] = "mend the member, or sort by another extension or content_key_type"
    checks: ClassVar[tuple[Check, ...]] = (
        Check(("content_key_type", "strip"), _only_strings_are_not_stripped),
        Check(("content_key_type", "bins"), _only_numbers_have_bins),
    )

    decreasing: bool = decreasing_option()
    extension: str = option(
        str | None,
        "Of content: the member that holds the key, by its full extension with the dot.",
        examples=(".cls",),
        check=_extension,
        required='the member with the key: ".cls"',
    )
    content_key_type: str = option(
        Literal["int", "float", "string"] | None,
        "Of content: the type of the key, and how keys compare. int: as whole numbers of up to "
        "4,096 digits; float: as 64-bit floats; string: by bytes.",
        required="int, float or string",
    )
    content_key_missing: str = option(
        Literal["abort", "first", "last"] | None,
        "Of content: where a record without that member goes; abort (the default) "
        "fails the job and names the record.",
        own_default="abort",
    )
    json_field: str | None = option(
        str | None,
        "Of content: the member is JSON, and the key is its field of this name; "
        "dots lead into objects and lists, or slashes as in the JSON pointer /meta/score. A "
        "field that is not of the content_key_type (null, an object, a number where strings are "
        "compared) fails the job and names the record.",
        examples=("meta.score",),
        check=_json_path,
    )
    strip: bool = option(
        bool,
        "Of content with content_key_type string: keys are compared without the white "
        "space around them. false: as they are, with the line feed at the end of a file.",
        default=True,
        misplaced=_STRIP_MISPLACED,
    )
    bins: tuple[int | float, ...] | None = option(
        tuple[int | float, ...] | None,
        "Of content with numbers: records are ordered by the bin that the key is in, and not by "
        "the key. Edges of bins, ascending; an edge is the first number of the bin that it begins.",
        examples=((128, 512, 2048),),
        check=_bins,
        is_sequence=True,
    )

    @property
    def extensions(self) -> tuple[str, ...]:
        """The one member."""
        return (self.extension,)

    @property
    def has_texts(self) -> bool:
        """True for strings, and for integers, which may not fit in a word."""
        return self.content_key_type != "float" and not self.bins

    @property
    def in_words(self) -> str:
        """The text for the algorithm in the summary of a job."""
        words = f"content: sorted by {self.extension}, as {self.content_key_type}"
        if self.json_field is not None:
            words += f", field {self.json_field}"
        if self.bins:
            words += f", in {len(self.bins) + 1:,} bins"
        return words + ", decreasing" * self.decreasing

    def sort_keys(self, records: RecordTable) -> SortKeys:
        """The values, with ranks if records without one are kept. One read and some µs a record."""
        return self._columns(self._values(records))

    def _values(self, records: RecordTable) -> list[int | float | bytes | None]:
        values: list[int | float | bytes | None] = []
        for rows, contents in _batches(records, records.rows_with(self.extension).tolist()):
            tokens = self._tokens(contents)
            for row, content, token in zip(rows, contents, tokens, strict=True):
                values.append(
                    None if content is None else self._value(records, row, content, token)
                )
                if values[-1] is None and self.content_key_missing == "abort":
                    key = records.keys[len(values) - 1]
                    raise self._missing(records.shard, key, has_member=row >= 0)
        return values

    def _tokens(self, contents: Sequence[bytes | None]) -> Sequence[bytes | None]:
        """For each JSON content, the text of the field as it is written; None where a search cannot
        find it without decoding the whole content."""
        if self.json_field is None:
            return [None] * len(contents)
        import numpy as np

        documents = [content or b"" for content in contents]
        lengths = np.fromiter(map(len, documents), np.int64, len(documents))
        ends = np.cumsum(lengths)
        return _pointer(self.json_field).plain_tokens(b"".join(documents), ends - lengths, ends)

    def _columns(self, values: Sequence[int | float | bytes | None]) -> SortKeys:
        import numpy as np

        from dsort.data.columns import BytesColumn
        from dsort.data.index import SortKeys
        from dsort.order.sort import big_int_words, float_words

        rank = None
        if self.content_key_missing != "abort":
            missing_rank = _RANK[self.content_key_missing]
            rank = np.array([missing_rank if v is None else 1 for v in values], np.uint8)
        if self.content_key_type in ("string", SCALAR):
            text = BytesColumn.of([v if isinstance(v, bytes) else b"" for v in values])
            return SortKeys(len(values), rank=rank, text=text)
        numbers = [0 if v is None else v for v in values]
        if self.bins:
            bins = [bisect_right(self.bins, cast(float, number)) for number in numbers]
            return SortKeys(len(values), rank=rank, words=np.array(bins, np.uint64))
        if self.content_key_type == "int":
            words, ties = big_int_words(cast(list[int], numbers))
            return SortKeys(len(values), rank=rank, words=words, text=ties)
        words = float_words(np.array(numbers, np.float64))
        return SortKeys(len(values), rank=rank, words=words)

    def _value(
        self, records: RecordTable, row: int, content: bytes, token: bytes | None
    ) -> int | float | bytes | None:
        try:
            if token is not None:
                return _of_token(token, self.content_key_type, self.json_field, strip=self.strip)
            return self._key(content)
        except KeyError:
            return None
        except ContentValueError as problem:
            name = readable(records.members.names[row])
            raise ContentKeyError(
                f"member {name} of shard {records.shard} is no {self.noun}: {problem}",
                hint=self.wrong_hint,
            ) from None

    def _missing(self, shard: str, key: bytes, *, has_member: bool) -> ContentKeyError:
        record = readable(key)
        what = (
            f"has no field {self.json_field} in its {self.extension} member"
            if has_member
            else f"has no {self.extension} member"
        )
        return ContentKeyError(
            f"record {record} of shard {shard} {what}",
            hint=self.missing_hint,
        )

    def expected(self, record: Record) -> SortValue | None:
        """The value, or the rank of a record that has none."""
        content = record.content(self.extension)
        if content is not None:
            try:
                key = self._key(content)
                if self.bins is not None and not isinstance(key, bytes):
                    return SortValue(1, sum(edge <= key for edge in self.bins))
                return SortValue(1, key)
            except KeyError:
                pass
            except ContentValueError:
                return None
        if self.content_key_missing == "abort":
            return None
        return SortValue(_RANK[self.content_key_missing], None)

    def _key(self, content: bytes) -> int | float | bytes:
        """The key in ``content``. Errors: see :func:`content_value`."""
        return content_value(content, self.content_key_type, self.json_field, strip=self.strip)


# -- reading a value ------------------------------------------------------------------------------


_BATCH_BYTES: Final = 1 << 20


def _batches(
    records: RecordTable, rows: Sequence[int]
) -> Iterator[tuple[list[int], list[bytes | None]]]:
    """Yield rows of the member table (negative: no member), and their contents, some at a time."""
    first, size_bytes = 0, 0
    contents: list[bytes | None] = []
    for at, row in enumerate(rows):
        contents.append(records.content(row) if row >= 0 else None)
        size_bytes += len(contents[-1] or b"")
        if size_bytes >= _BATCH_BYTES or at + 1 == len(rows):
            yield list(rows[first : at + 1]), contents
            first, contents, size_bytes = at + 1, [], 0


def _of_token(token: bytes, kind: str, field: str | None, *, strip: bool) -> int | float | bytes:
    """The key in ``token``, a number or a quoted string."""
    from dsort.data.json_pointer import JsonNumber

    text = token.decode("utf-8", "surrogateescape")
    value = text[1:-1] if text.startswith('"') else JsonNumber(text)
    try:
        return _typed(value, kind, strip=strip)
    except ContentValueError as error:
        raise ContentValueError(f"field {shortened(field or '')}: {error}") from None


def _pointer(field: str) -> JsonPointer:
    from dsort.data.json_pointer import JsonPointer

    if not field.startswith("/"):
        field = "/" + field.replace("~", "~0").replace("/", "~1").replace(".", "/")
    return JsonPointer.parse(field)


def _json_value(content: bytes, field: str) -> object:
    from dsort.data.json_pointer import JsonSyntaxError

    try:
        encoding = json.detect_encoding(content)
        if encoding != "utf-8":
            content = content.decode(encoding, "surrogatepass").encode("utf-8", "surrogatepass")
        return _pointer(field).value(content)
    except JsonSyntaxError as problem:
        raise ContentValueError(f"the member is {problem}") from None
    except UnicodeError:
        raise ContentValueError("the member is not JSON") from None


def _typed(value: object, kind: str, *, strip: bool) -> int | float | bytes:
    from dsort.data.json_pointer import JsonNumber, text_bytes

    if kind == SCALAR and not isinstance(value, (str, dict, list)):
        value = json.dumps(value)
    if isinstance(value, JsonNumber):
        if kind == SCALAR:
            return value.encode()
        if kind == "string":
            raise ContentValueError(f"the number {shortened(value)} is not a string")
        if kind == "int":
            return _integer_of_decimal(value)
        number = float(value)
        if math.isinf(number) and value.lstrip("-").isdecimal():
            raise ContentValueError("the number is too large for a float")
        return number
    if isinstance(value, str):
        return content_value(text_bytes(value), kind, None, strip=strip)
    if isinstance(value, float) and kind == "float":  # NaN and Infinity, as Python writes them
        return _checked(value)
    parts = "an object" if isinstance(value, dict) else "a list"
    shown = parts if isinstance(value, (dict, list)) else json.dumps(value)
    raise ContentValueError(f"{shown} is not {_article(kind)}")


def _integer(text: str) -> int:
    """The integer that ``text`` is; ``ValueError`` for any other text, also for one with white
    space around the number."""
    if len(text) <= _SHORT_MAX:
        return int(text)
    match = re.fullmatch(_INTEGER, text)
    if not match:
        raise ValueError(text)
    sign, digits = match[1], match[2].lstrip("0")
    _check_digits(len(digits))
    return int(f"{sign}{digits or '0'}")


def _integer_of_decimal(text: str) -> int:
    """The exact integer that the JSON number ``text`` stands for: ``1.5e1`` is 15."""
    match = re.fullmatch(_DECIMAL, text)
    if match is not None:
        sign, whole, fraction, exponent = match.groups(default="")
        digits = (whole + fraction).lstrip("0")
        shift = int(exponent or 0) - len(fraction)
        if shift < 0:
            kept, cut = digits[:shift], digits[shift:]
            digits, shift = kept, 0 if not cut.strip("0") else -1
        if not digits:
            shift = min(shift, 0)
        if shift >= 0:
            _check_digits(len(digits) + shift)
            return int(f"{sign}{digits or '0'}{'0' * shift}")
    raise ContentValueError(f"{shortened(text)} is not an int")


def _check_digits(count: int) -> None:
    if count > DIGITS_MAX:
        raise ContentValueError(f"the number has more than {DIGITS_MAX:,} digits")


def _checked(value: float) -> float:
    if math.isnan(value):
        raise ContentValueError("NaN has no place in an order")
    return value


def _article(kind: str) -> str:
    return {"int": "an int", "float": "a float"}.get(kind, "a string")


def _shown(text: bytes) -> str:
    return repr(readable(text[:40])) + ("…" if len(text) > 40 else "")
