"""Logs in scratch: JSON lines about the effects of reactions, and about staged output shards."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from json.encoder import encode_basestring_ascii

from msgspec import Struct, to_builtins

from dsort.data.json_values import Count, Integer, checked
from dsort.data.tally import Tally
from dsort.errors import StorageError
from dsort.scratch.directory import Scratch
from dsort.storage.directory.os_errors import StorageErrors

LINES_AT_ONCE = 10_000


def lines_file(stage: str, number: int) -> str:
    """The file of the lines of one shard (stage ``index``) or part (stage ``duplicates``)."""
    return f"{stage}-{number}.jsonl"


def reaction_line(kind: str, *, shard: str = "", name: str = "", count: int = 1) -> bytes:
    """One line of a reaction."""
    parts = [f'{{"kind": "{kind}"']
    if shard:
        parts.append(f'"shard": {encode_basestring_ascii(shard)}')
    if name:
        parts.append(f'"name": {encode_basestring_ascii(name)}')
    if count != 1:
        parts.append(f'"count": {count}')
    return (", ".join(parts) + "}\n").encode("ascii")


# The counts of reactions are in the results of tasks; the names are in files, one for each shard or
# part. A line has `kind`, `shard`, `name` (of a member or record; absent if the line is about the
# shard) and `count` (absent if it is 1). The files stay on their nodes until the coordinator joins
# them, so that names take no memory.
class LineWriter:
    """Writes lines to a file of ``scratch``, which readers see once it is whole; without lines,
    there is no file."""

    def __init__(self, scratch: Scratch, name: str) -> None:
        self._scratch = scratch
        self._name = name
        self._is_begun = False

    def write(self, lines: Iterable[bytes]) -> None:
        """Add ``lines``."""
        rest = iter(lines)
        while block := b"".join(islice(rest, LINES_AT_ONCE)):
            if not self._is_begun:
                self._scratch.unlink(f"{self._name}.part")  # left by a worker that died
                self._is_begun = True
            self._scratch.append(f"{self._name}.part", block)

    def close(self) -> None:
        """Make the file appear."""
        with StorageErrors(f"write {self._name}", str(self._scratch)):
            if self._is_begun:
                self._scratch.rename(f"{self._name}.part", self._name)
            else:
                # An earlier try at the same task may have had lines.
                self._scratch.unlink(self._name)


class _NoLines(LineWriter):
    """Writes nothing."""

    def __init__(self) -> None:
        """There is no file."""

    def write(self, lines: Iterable[bytes]) -> None:
        """Ignore ``lines``, without iterating over them."""

    def close(self) -> None:
        """Do nothing."""


NO_LINES = _NoLines()


class ReactionLog(Tally, kw_only=True):
    """A tally of the shard ``shard``; ``writer`` writes all its names.

    Names are ``<shard>`` or ``<shard>: <member or record>``, as in the samples.
    """

    shard: str
    writer: LineWriter = NO_LINES

    def add(self, kind: str, count: int = 1, names: Iterable[str] = ()) -> None:
        """Count ``count`` more of ``kind``, and write all of ``names``."""
        if count <= 0:
            return
        texts = list(names)
        super().add(kind, count, texts)
        self.write_names(kind, texts, count)

    def write_names(self, kind: str, names: Sequence[str], count: int) -> None:
        """Write ``names`` without counting them, for callers that count separately. If ``count`` is
        larger than their number, the last line has the rest."""
        start, more = f"{self.shard}: ", max(count - len(names), 0)
        self.writer.write(
            reaction_line(
                kind,
                shard=self.shard,
                name=text.removeprefix(start) if text.startswith(start) else "",
                count=1 + more if at == len(names) else 1,
            )
            for at, text in enumerate(names, 1)
        )

    def close(self) -> Tally:
        """Make the file of names appear; return the counts."""
        self.writer.close()
        return Tally(self.counts, self.samples)


PREFIX = "created-"
LOGGED_BYTES = 8 << 20
"""The most bytes of output shards that wait to be logged: a worker that dies has written these in
vain."""
LOGGED_MAX = 64
SUFFIX = ".jsonl"


class ShardCreated(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A whole, staged output shard. ``receipt``: the value needed to publish it; ``digests``: a
    text of ``FileDigests``; ``file_bytes``: its length, -1 if unknown."""

    ordinal: Count
    xxh3: str
    receipt: str
    digests: str
    file_bytes: Integer


# A create task has many output shards, and ends when all are staged. Each shard is logged as soon
# as its receipt has come, so that a resumed job need not write it again.
class CreatedLog:
    """The log of one worker; lines are appended, each whole.

    Lines of small shards are gathered, up to ``LOGGED_BYTES``, because opening the file for each
    shard took a tenth of the time of creating shards of 1 KB. Any thread may append.
    """

    def __init__(self, scratch: Scratch, worker: int) -> None:
        self._scratch = scratch
        self._name = f"{PREFIX}{worker}{SUFFIX}"
        self._lock = threading.Lock()
        self._lines: list[bytes] = []
        self._bytes = 0

    def append(self, shard: ShardCreated) -> None:
        """Log a staged shard, at once or together with the next ones."""
        line = json.dumps(to_builtins(shard)).encode() + b"\n"
        with self._lock:
            self._lines.append(line)
            self._bytes += shard.file_bytes
            if self._bytes < LOGGED_BYTES and len(self._lines) < LOGGED_MAX:
                return
        self.flush()

    def flush(self) -> None:
        """Write the lines that wait."""
        with self._lock:
            lines, self._lines, self._bytes = self._lines, [], 0
            if lines:
                self._scratch.append(self._name, b"".join(lines))


def read_created_logs(scratch: Scratch) -> list[ShardCreated]:
    """The shards in the logs of all workers of a node, without incomplete lines. ``StorageError``
    for an invalid line."""
    names = [name for name in scratch.names() if name.startswith(PREFIX) and name.endswith(SUFFIX)]
    return [
        shard
        for name in sorted(names, key=scratch.written_ns)
        for shard in _shards(name, scratch.read(name))
    ]


def _shards(name: str, data: bytes) -> Iterator[ShardCreated]:
    # The last part is empty, or a line that was cut off when the worker died.
    for number, line in enumerate(data.split(b"\n")[:-1], 1):
        try:
            yield checked(json.loads(line), ShardCreated)
        except (ValueError, RecursionError):
            raise StorageError(
                f"line {number} of {name} in scratch describes no output shard"
            ) from None
