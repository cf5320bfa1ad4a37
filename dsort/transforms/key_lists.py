"""The steps ``keep_keys`` and ``drop_keys``: keep the records whose keys are listed, or all
others."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, NotRequired, Self

from typing_extensions import TypedDict

from dsort.errors import InvariantError
from dsort.naming.locations import FileLocation
from dsort.order.base import OptionError
from dsort.transforms.base import OPTIONS_CONFIG, ReadText, Step

if TYPE_CHECKING:
    from dsort.data.columns import Bools, BytesColumn
    from dsort.data.key_set import KeySet
    from dsort.data.record_table import RecordTable

__all__ = ["DropKeys", "KeepKeys"]


class KeyListOptions(TypedDict):
    """Which keys: exactly one of these."""

    __pydantic_config__ = OPTIONS_CONFIG  # type: ignore[misc]

    keys: NotRequired[list[str]]
    """The keys themselves: whole record keys, as `dsort inspect` shows them."""
    file: NotRequired[FileLocation]
    """Where they are, one a line: a path (relative to the spec file, if the spec is one), an
    http(s) URL, or, in specs of your own machine, an object such as s3://bucket/keys.txt."""


@dataclass(frozen=True, slots=True)
class _KeyList(Step):
    """A list of keys, from the spec or from a file. ``found``: the content of the file, once it is
    read."""

    keys: tuple[str, ...] | None
    file: FileLocation | None
    found: bytes | None = field(default=None, repr=False)

    options_type: ClassVar[Any] = KeyListOptions
    is_for_rows = True

    @classmethod
    def of(cls, options: KeyListOptions) -> Self:
        """The step with these options."""
        keys, file = options.get("keys"), options.get("file")
        if (keys is None) == (file is None):
            found = "has both" if keys is not None else "has neither"
            raise OptionError(
                f"needs either keys or file, but {found}", "file: a path or URL, one key a line"
            )
        return cls(None if keys is None else tuple(keys), file)

    @property
    def options(self) -> dict[str, Any]:
        """All of them."""
        return {"file": self.file} if self.keys is None else {"keys": list(self.keys)}

    def loaded(self, read: ReadText) -> Self:
        """The same step with the keys of its file."""
        if self.file is None:
            return self
        return replace(self, found=read(self.file).encode("utf-8", "surrogateescape"))

    def digest(self) -> str:
        """A hash that covers the keys, also those in the file."""
        own = super(_KeyList, self).digest()
        return own if self.found is None else f"{own}/{hashlib.sha256(self.found).hexdigest()}"

    @property
    def listed(self) -> tuple[str, ...]:
        """One entry for the list as a whole."""
        return (f"{self.kind}: {'its keys' if self.file is None else f'the keys of {self.file}'}",)

    def listed_keys(self) -> BytesColumn:
        """The keys, in the order of ``KeySet``. The file has to be read before."""
        return _key_set(self.keys, self.found).keys

    def _listed(self, records: RecordTable) -> Bools:
        """Which records have a key of the list."""
        found = _key_set(self.keys, self.found).has(records.keys)
        records.fits(self.listed[0], bool(found.any()))
        return found


@lru_cache(maxsize=4)  # made once in a process instead of for each shard
def _key_set(keys: tuple[str, ...] | None, text: bytes | None) -> KeySet:
    from dsort.data.columns import BytesColumn
    from dsort.data.key_set import KeySet, lines_of

    if keys is not None:
        texts = [key.encode("utf-8", "surrogateescape") for key in keys]
        return KeySet.of(BytesColumn.of(texts))
    if text is None:
        raise InvariantError("the file of a list of keys has not been read")
    return KeySet.of(lines_of(text))


class KeepKeys(_KeyList):
    """Keeps the records whose keys are listed."""

    __slots__ = ()

    kind: ClassVar[str] = "keep_keys"
    summary: ClassVar[str] = "Keep only the records whose keys are listed."

    def apply(self, records: RecordTable) -> RecordTable:
        """The records whose keys are listed."""
        return records.keeping(self._listed(records))


class DropKeys(_KeyList):
    """Leaves out the records whose keys are listed."""

    __slots__ = ()

    kind: ClassVar[str] = "drop_keys"
    summary: ClassVar[str] = "Leave out the records whose keys are listed."

    def apply(self, records: RecordTable) -> RecordTable:
        """The records whose keys are not listed."""
        return records.keeping(~self._listed(records))
