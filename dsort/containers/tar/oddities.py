"""All oddities that a readable tar may have, with the sentences about them.

One table for jobs (``kind``, ``warning``), for ``dsort inspect`` (``inspected``, ``text``) and for
shards that may be incomplete (``shortfall``, which jobs and ``dsort verify`` use). Jobs count
oddities, and ``dsort inspect`` lists them, in the order of the table.
"""

from __future__ import annotations

from dsort.containers.base import OddityKind
from dsort.data.members import ScanNotes


class TarNotes(ScanNotes, frozen=True):
    """The oddities that only a tar can have."""

    missing_end: bool = False  # no whole end-of-archive marker
    unexplained_zeros: int = 0  # after end markers, more than any writer pads with
    blank: bool = False  # nothing but zeros, or nothing at all
    concatenated: int = 0  # further archives behind the first one's end marker
    unusual_padding: int = 0  # zeros at the end that few writers pad with
    global_headers_folded: int = 0
    global_headers_dropped: int = 0
    volume_labels_dropped: int = 0
    lone_zero_blocks: int = 0  # single zero blocks before further members, which were read
    long_names_repeated: tuple[int, ...] = ()  # rows with several long names, of which one was kept


# Several of a shard's oddities may show that members are missing. The first of them in this table
# is the reported reason.
ODDITIES = (
    OddityKind(
        "blank",
        inspected="blank",
        text="nothing but zeros, or nothing at all: not a whole shard",
        shortfall="it holds nothing, or nothing but zeros",
    ),
    OddityKind(
        "trailing_bytes",
        inspected="trailing_bytes",
        text="[byte|bytes] behind the end marker that [is|are] no tar",
        shortfall="{count:,} bytes behind its end marker are no tar",
    ),
    OddityKind(
        "unexplained_zeros",
        inspected="unexplained_zeros",
        text="[byte|bytes] of zeros behind an end marker, more than tar writers pad with",
        shortfall="more zeros than tar writers pad with ({count:,} bytes)",
    ),
    OddityKind(
        "missing_end",
        inspected="missing_end",
        text="the end-of-archive marker is missing: not a whole shard",
        shortfall="its end-of-archive marker is missing",
        unless="blank",
    ),
    OddityKind(
        "concatenated",
        kind="concatenated_shards",
        warning="{count} [shard is|shards are] several tars one after the other; all were read, "
        "but many readers stop where the first one ends: {names}",
        by_shard=True,
        inspected="concatenated",
        refused="is {archives} tars one after the other",
        text="further [tar|tars] behind the first one's end marker, where many readers stop",
    ),
    OddityKind(
        "unusual_padding",
        kind="unusual_padding",
        warning="{count} [shard ends|shards end] in zeros as only tar -b and tar -A leave them; "
        "if another program wrote these zeros, members may be missing: {names}",
        by_shard=True,
        inspected="unusual_padding",
        text="[byte|bytes] of zeros behind the end marker, as only tar -b and tar -A leave them",
    ),
    OddityKind(
        "hardlinks_resolved",
        kind="hardlinks_resolved",
        inspected="hard_links",
        text="hard [link to another member|links to other members] of the shard",
    ),
    OddityKind(
        "global_headers_folded",
        kind="global_headers_folded",
        warning="{count} global pax [header was|headers were] folded into the members that "
        "[it governs|they govern], in {names}",
        inspected="global_headers",
        text="global pax [header|headers]",
    ),
    OddityKind(
        "global_headers_dropped",
        kind="global_headers_dropped",
        inspected="global_headers",
        text="global pax [header|headers]",
    ),
    OddityKind(
        "volume_labels_dropped",
        kind="volume_labels_dropped",
        inspected="volume_labels",
        text="volume [label, which is no member|labels, which are no members]",
    ),
    OddityKind(
        "lone_zero_blocks",
        kind="lone_zero_blocks",
        warning="{count} lone [block of zeros stands|blocks of zeros stand] between members, where "
        "some readers stop (all members were read), in {names}",
        inspected="lone_zero_blocks",
        text="lone [block|blocks] of zeros between members, where some readers stop",
    ),
    OddityKind(
        "mended",
        kind="headers_mended",
        warning="{count} [member has numbers in its header|members have numbers in their headers] "
        "at which some readers stop; these were written anew: {names}",
        inspected="odd_headers",
        text="[member|members] with numbers in headers at which some readers stop",
    ),
    OddityKind(
        "long_names_repeated",
        kind="long_names_repeated",
        warning="{count} [member has|members have] several long names, of which the last one "
        "counts: {names}",
        inspected="repeated_long_names",
        text="[member|members] with several long names, of which the last one counts",
    ),
    OddityKind(
        "unsafe_prefixes",
        inspected="unsafe_prefixes",
        text="[member|members] that some readers unpack elsewhere, by a prefix that others "
        "do not read",
    ),
)
