"""The columns of an MDS shard, from its config, bounded and checked."""

from __future__ import annotations

import json
from typing import Any, Final

from msgspec import Struct

__all__ = ["CONFIG_BYTES_MAX", "NO_COLUMNS", "NUMBER_TYPES", "Columns"]

CONFIG_BYTES_MAX: Final = 1 << 20
COLUMNS_MAX: Final = 4096
_SIZE_MAX: Final = (1 << 32) - 1

NUMBER_TYPES: Final = {
    "int": "<i8",
    **{f"int{bits}": f"<i{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"<u{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"<f{bits // 8}" for bits in (16, 32, 64)},
}
"""The encodings that are one number of a fixed size, with their names in NumPy."""


class Columns(Struct, frozen=True):
    """Names, encodings and sizes of the columns, in the order of a sample's values. A size is None
    if each sample has its own."""

    names: tuple[str, ...] = ()
    encodings: tuple[str, ...] = ()
    sizes: tuple[int | None, ...] = ()

    @property
    def variable(self) -> int:
        """How many columns have no fixed size."""
        return sum(size is None for size in self.sizes)

    @property
    def fixed_bytes(self) -> int:
        """The number of bytes that the other columns take in a sample."""
        return sum(size or 0 for size in self.sizes)

    @classmethod
    def of_config(cls, data: bytes) -> Columns:
        """The columns in the config of a shard; ``ValueError`` if it is not such a config."""
        try:
            config = json.loads(data)
        except (RecursionError, UnicodeDecodeError, ValueError):
            raise ValueError("its config is no JSON") from None
        if not isinstance(config, dict):
            raise ValueError("its config is no object")
        if config.get("format") != "mds" or config.get("version") != 2:
            raise ValueError("its config is not that of MDS version 2")
        return cls._checked(config)

    @classmethod
    def of_schema(cls, schema: str) -> Columns:
        """The columns of a :attr:`schema`; none for ""."""
        return cls._checked(json.loads(schema)) if schema else cls()

    @classmethod
    def _checked(cls, config: dict[str, Any]) -> Columns:
        names, encodings, sizes = (
            config.get(f"column_{what}") for what in ("names", "encodings", "sizes")
        )
        for values in (names, encodings, sizes):
            if not isinstance(values, list) or len(values) > COLUMNS_MAX:
                raise ValueError("its config has no columns, or too many")
        assert isinstance(names, list)
        assert isinstance(encodings, list)
        assert isinstance(sizes, list)
        texts = all(isinstance(text, str) for text in (*names, *encodings))
        fits = all(size is None or (type(size) is int and 0 < size <= _SIZE_MAX) for size in sizes)
        whole = len(names) == len(encodings) == len(sizes) == len(set(map(str, names)))
        if not (texts and fits and whole):
            raise ValueError("its config has columns that are none")
        for encoding, size in zip(encodings, sizes, strict=True):
            if encoding in NUMBER_TYPES and size != int(NUMBER_TYPES[encoding][2:]):
                raise ValueError(f"its config has a column of {encoding} of another size")
        return cls(tuple(names), tuple(encodings), tuple(sizes))

    @property
    def schema(self) -> str:
        """The columns as text, the same for the same columns."""
        return json.dumps(self.as_config(), sort_keys=True)

    def as_config(self) -> dict[str, Any]:
        """The description of the columns in a config, and in a shard's line of an index."""
        return {
            "column_encodings": list(self.encodings),
            "column_names": list(self.names),
            "column_sizes": list(self.sizes),
        }

    def difference(self, other: Columns) -> str:
        """How ``other`` differs, in words that follow the name of its shard."""
        for name in self.names:
            if name not in other.names:
                return f"has no column {name}"
        for name in other.names:
            if name not in self.names:
                return f"has a column {name}"
        for name, encoding, size in zip(self.names, self.encodings, self.sizes, strict=True):
            at = other.names.index(name)
            if other.encodings[at] != encoding:
                return f"has column {name} as {other.encodings[at]}, not {encoding}"
            if other.sizes[at] != size:
                return f"has column {name} with a size of {other.sizes[at]}, not {size}"
        return "has its columns in another order"


NO_COLUMNS: Final = Columns()
