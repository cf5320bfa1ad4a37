"""What output shards are called, and when they close, as the spec says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dsort.core.names import check_output_name, with_extension
from dsort.core.plan import CutRule, OutputShard
from dsort.core.templates import ShardTemplate, parse_template

__all__ = ["OutputNames", "TemplateExhaustedError"]


class TemplateExhaustedError(ValueError):
    """A template has fewer names than there are output shards."""


@dataclass(frozen=True, slots=True)
class OutputNames:
    """The templates of a job's outputs, one a group, each with its own counter."""

    templates: tuple[ShardTemplate, ...]
    extension: str

    @classmethod
    def of(cls, texts: Sequence[str], extension: str) -> OutputNames:
        """From the templates' texts; ``ValueError`` where one is none, or its names cannot be those
        of outputs."""
        names = cls(tuple(parse_template(text) for text in texts), extension)
        for group in range(len(names.templates)):
            check_output_name(names.name(group, 0))
        return names

    def name(self, group: int, number: int) -> str:
        """The name of shard ``number`` of ``group``."""
        return with_extension(self.templates[group].name(number), self.extension)

    def names(self, shards: Sequence[OutputShard]) -> list[str]:
        """The name of each shard.

        ``TemplateExhaustedError`` says how many names are missing; ``ValueError`` if one cannot be
        an object's name.
        """
        needed: dict[int, int] = {}
        for shard in shards:
            needed[shard.group] = max(needed.get(shard.group, 0), shard.number + 1)
        for group, count in sorted(needed.items()):
            template = self.templates[group]
            if template.count is not None and count > template.count:
                raise TemplateExhaustedError(
                    f"template {template.text} has {template.count} names, but the result is "
                    f"{count} shards"
                )
        names = [self.name(shard.group, shard.number) for shard in shards]
        for name in names:
            check_output_name(name)
        return names

    def cut_rule(
        self,
        *,
        size_bytes: int | None,
        records: int | None,
        count: int | None,
        payload_total: int,
        records_total: int,
    ) -> CutRule:
        """When shards close. With none of the three: an even share of a bounded template each."""
        if records is not None:
            return CutRule(records=records)
        if count is not None:
            return CutRule(count=count, records_total=records_total)
        if size_bytes:
            return CutRule(size_bytes=size_bytes)
        names = self.templates[0].count
        assert names is not None, "an unbounded template has a size (the spec was checked)"
        return CutRule(size_bytes=max(-(-payload_total // names), 1), shards_max=names)
