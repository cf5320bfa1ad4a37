"""All oddities that a readable zip may have, with the sentences about them."""

from __future__ import annotations

from dsort.containers.base import OddityKind
from dsort.data.members import ScanNotes

__all__ = ["ODDITIES", "ZipNotes"]


class ZipNotes(ScanNotes, frozen=True):
    """The oddities of a zip, besides ``mended`` and ``trailing_bytes``."""

    leading_zip_bytes: int = 0  # before the first entry, if they begin like an entry
    leading_bytes: int = 0  # before the first entry
    unlisted_bytes: int = 0  # between entries, or after the last one
    comment_bytes: int = 0
    cp437_names: tuple[int, ...] = ()  # rows whose names are neither flagged as UTF-8 nor ASCII
    other_methods: tuple[int, ...] = ()  # rows that are neither stored nor deflated


ODDITIES = (
    OddityKind(
        "trailing_bytes",
        inspected="trailing_bytes",
        text="bytes behind the end record that are no zip",
        shortfall="{count:,} bytes behind its end record are no zip",
    ),
    OddityKind(
        "leading_zip_bytes",
        inspected="leading_zip",
        text="bytes before the first entry that begin as another zip does",
        shortfall="{count:,} bytes before its first entry begin as another zip does, and its "
        "central directory does not list them",
    ),
    OddityKind(
        "unlisted_bytes",
        inspected="unlisted_bytes",
        text="bytes between entries that the central directory does not list",
        shortfall="{count:,} bytes between its entries are in none that its central directory "
        "lists",
    ),
    OddityKind(
        "leading_bytes",
        kind="leading_bytes",
        warning="{count} bytes before the first entry were left out, in {names}",
        inspected="leading_bytes",
        text="bytes before the first entry",
        unless="leading_zip_bytes",
    ),
    OddityKind(
        "comment_bytes",
        kind="comments_dropped",
        warning="{count} bytes of comments of whole zips were left out, in {names}",
        inspected="comment",
        text="bytes of a comment of the whole zip",
    ),
    OddityKind(
        "mended",
        kind="headers_mended",
        warning="{count} entries have local headers at which some readers stop; these were written "
        "anew from the central directory: {names}",
        inspected="odd_headers",
        text="entries whose local headers say less than the central directory",
    ),
    OddityKind(
        "cp437_names",
        kind="cp437_names",
        inspected="cp437_names",
        text="names that are not marked as UTF-8, and were read as code page 437",
    ),
    OddityKind(
        "other_methods",
        kind="other_methods",
        inspected="other_methods",
        text="entries that are neither stored nor deflated: they move, but are not read",
    ),
)
