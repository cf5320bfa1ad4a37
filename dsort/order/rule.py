"""The sort rule: what a job's algorithm is, as a plain value that workers are given."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SortRule"]


@dataclass(frozen=True, slots=True)
class SortRule:
    """Kind and parameters of the algorithm, all defaults filled in."""

    kind: str  # none | alphanumeric | shuffle | md5 | content
    seed: str = ""  # shuffle
    decreasing: bool = False
    natural: bool = False  # alphanumeric
    content_extension: str = ""  # content: with its dot, compared with the whole extension
    content_type: str = "string"  # int | float | string
    content_missing: str = "abort"  # abort | first | last
    json_field: str | None = None  # content: a dotted path into a JSON member
    content_strip: bool = True  # content: strings without the white space around them

    @property
    def hashed(self) -> bool:
        """Whether sort keys are hashes, so that they spread evenly and need no survey."""
        return self.kind in ("shuffle", "md5")
