"""Where a tar ends: its end marker, the zeros that a writer pads it with, and what comes after.

A torn write or a preallocated download leaves zeros in place of members, and two zero blocks are an
end marker. What tells them apart is the padding: GNU tar, Python and others fill up a *record* of
10,240 bytes, so that the archive is a whole number of records and less than one of them is padding;
Go, Rust and dsort pad with nothing. Other zeros are noted: as unusual, where ``tar -b`` (records of
a power of two, up to 1 MiB) or ``tar -A`` (which copies a padded tar and pads the whole once more)
may have left them, else as unexplained.

Zeros within the last record of a padded tar are what a shorter tar would have there as well:
nothing in the bytes tells.
"""

from __future__ import annotations

from dsort.containers.tar.headers import BLOCK_BYTES

__all__ = ["END_BYTES", "EndWatch"]

END_BYTES = 2 * BLOCK_BYTES
_USUAL_RECORD_BYTES = 20 * BLOCK_BYTES
_OTHER_RECORD_BYTES_MIN, _OTHER_RECORD_BYTES_MAX = 32 << 10, 1 << 20


class EndWatch:
    """What is known of the ends of the archives in one shard of ``size_bytes``."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._start = 0  # of the archive that is being read
        self._marker_at = 0  # of that archive
        self._holds_anything = False
        self.missing_end = True
        self.trailing_bytes = 0
        self.unexplained_zeros = 0
        self.concatenated = 0
        self.unusual_padding = 0

    @property
    def blank(self) -> bool:
        """Whether there is nothing in the shard but zeros, and more than an end marker; or not even
        that. An end marker alone is a whole tar of no members, and too short to have had one."""
        return not self._holds_anything and self._size_bytes != END_BYTES

    def note_content(self) -> None:
        """There is something other than zeros."""
        self._holds_anything = True

    def note_marker(self, at: int, length: int) -> None:
        """``length`` zero bytes at ``at`` end the archive; an end marker, if they are as many."""
        self._marker_at = at
        self.missing_end = length < END_BYTES

    def note_archive(self, at: int) -> None:
        """Another archive begins at ``at``, behind the zeros of the one before it."""
        padding = at - self._marker_at - END_BYTES
        length = at - self._start
        if not self._holds_anything:  # a tar of no members, as GNU tar and Python write it
            explained = length in (END_BYTES, _USUAL_RECORD_BYTES)
        else:
            # Of unusual records both have to be: a hole in a file ends at such a place as well,
            # but the file hardly does.
            both = length | (self._size_bytes - at)
            explained = padding < max(_USUAL_RECORD_BYTES, _other_record_bytes(both))
        if not explained:
            self.unexplained_zeros += padding
        self._start = at
        self.missing_end = True
        self.concatenated += 1

    def note_trailing(self, at: int) -> None:
        """From ``at`` on there is something that is no tar."""
        self._holds_anything = True
        self.trailing_bytes = self._size_bytes - at

    def finish(self) -> None:
        """The shard has been read to its end."""
        if self.missing_end or self.trailing_bytes or self.blank:
            return
        padding = self._size_bytes - self._marker_at - END_BYTES
        # ``tar -A`` puts a tar behind another that is not a whole number of records.
        lengths = (self._size_bytes, self._size_bytes - self._start)
        usual = any(length % _USUAL_RECORD_BYTES == 0 for length in lengths)
        if padding == 0 or (usual and padding < _USUAL_RECORD_BYTES):
            return
        twice = usual and padding < 2 * _USUAL_RECORD_BYTES + END_BYTES
        if twice or padding < _other_record_bytes(lengths[1]):
            self.unusual_padding = padding
        else:
            self.unexplained_zeros += padding


def _other_record_bytes(length: int) -> int:
    """The largest power of two that may be the size of the records of so long an archive; or 0."""
    size_bytes = min(length & -length, _OTHER_RECORD_BYTES_MAX)
    return size_bytes if size_bytes >= _OTHER_RECORD_BYTES_MIN else 0
