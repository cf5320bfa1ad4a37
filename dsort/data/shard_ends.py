"""What the spec's reactions say to how a shard ends."""

from __future__ import annotations

from dsort.data.members import ScanNotes

__all__ = ["refusal"]


def refusal(
    notes: ScanNotes, incomplete_shards: str, concatenated_shards: str
) -> tuple[str, str] | None:
    """(what is wrong with a shard's end, what would help), of a shard that the two reactions
    refuse; None if they do not."""
    if notes.shortfall and incomplete_shards == "abort":
        return (
            f"may not be whole: {notes.shortfall}",
            "fetch or write it again; incomplete_shards: warn takes what can be read of it",
        )
    if notes.concatenated and concatenated_shards == "abort":
        return (
            f"is {notes.concatenated + 1} tars one after the other",
            "concatenated_shards: read takes all of them",
        )
    return None
