"""Classes of records, in each of which the fractions of several outputs hold."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NoReturn

from msgspec import Struct

from dsort.errors import TransformError
from dsort.naming.names import readable, shortened

if TYPE_CHECKING:
    from dsort.data.columns import UInt64s
    from dsort.data.record_table import RecordTable
    from dsort.expressions.expression import Expression

_MEMBER: Final = r"[A-Za-z_][A-Za-z0-9_-]*"
_OF_INDEX: Final = frozenset({"key", "shard", "input", "ordinal", "true", "false"})
_NONE: Final = b"\0none"  # no content is hashed with this salt
_CLASS_BYTES_MAX: Final = 1 << 16
"""The largest size of a member whose content is a class."""
_READ_AT_ONCE: Final = 64
_SHARED: Final = "name something that several records share"


class MemberClass(Struct, frozen=True):
    """Classes by the content of the member with this extension, without surrounding white space. If
    records are nothing but JSON, the field of that name decides; in tables the column, and nulls
    are a class."""

    extension: str

    def hashes(self, records: RecordTable, *, are_rows: bool) -> UInt64s:
        """A hash of the class of each record (64 bits), shape ``(n,)``. ``TransformError`` names a
        record without a class."""
        import numpy as np
        import xxhash

        from dsort.data.hashes import hash_keys
        from dsort.expressions.reading import MEMBER_BYTES_MAX

        found = records.rows_with(f".{self.extension}")
        are_fields = found < 0
        found = np.where(are_fields, records.json_alone(), found) if are_fields.any() else found
        there = np.flatnonzero(found >= 0)
        if not are_rows and len(there) < len(found):
            hint = "require leaves such records out"
            self._refuse(records, int(np.flatnonzero(found < 0)[0]), "no", hint)
        sizes = records.members.payload_bytes[found[there]]
        large = sizes > np.where(are_fields[there], MEMBER_BYTES_MAX, _CLASS_BYTES_MAX)
        if not are_rows and large.any():
            self._refuse(records, int(there[np.flatnonzero(large)[0]]), "a large", _SHARED)
        hashes = np.full(len(found), xxhash.xxh3_64_intdigest(_NONE), np.uint64)
        for start in range(0, len(there), _READ_AT_ONCE):
            some = there[start : start + _READ_AT_ONCE]
            contents = records.contents(found[some].tolist())
            for at in np.flatnonzero(are_fields[some]).tolist():
                contents[at] = self._field(records, int(some[at]), contents[at])
            hashes[some] = hash_keys((each.strip() for each in contents), len(some))
        return hashes

    def _field(self, records: RecordTable, record: int, document: bytes) -> bytes:
        """The class of a record that is the JSON ``document``."""
        from dsort.data.json_pointer import JsonSyntaxError, field_as_member

        try:
            value = field_as_member(document, self.extension)
        except JsonSyntaxError as error:
            self._refuse(records, record, "no", f"its .json member is {error}")
        if value is None:
            self._refuse(records, record, "no", "filter: 'has(json.label)' leaves such records out")
        if len(value) > _CLASS_BYTES_MAX:
            self._refuse(records, record, "a large", _SHARED)
        return value

    def _refuse(self, records: RecordTable, record: int, what: str, hint: str) -> NoReturn:
        raise TransformError(
            f"stratify: record {readable(records.keys[record])} of shard {records.shard} has "
            f"{what} {shortened(self.extension)}",
            hint=hint,
        )


class ValueClass(Struct, frozen=True):
    """Classes by the value of an expression."""

    value: Expression

    def hashes(self, records: RecordTable, *, are_rows: bool) -> UInt64s:
        """See :class:`MemberClass`."""
        from dsort.data.hashes import hash_keys
        from dsort.expressions.expression import text_of_value

        values = self.value.values_of(records, "stratify")
        return hash_keys(map(text_of_value, values), len(values))


ClassOf = MemberClass | ValueClass


def class_by(text: str) -> ClassOf:
    """The classes of ``stratify: text``, which is the name of a member or column, or an expression.
    ``ExpressionError`` if it is none."""
    if re.fullmatch(_MEMBER, text) and text not in _OF_INDEX:
        return MemberClass(text)
    from dsort.expressions.expression import Expression

    return ValueClass(Expression.of(text, wanted=""))
