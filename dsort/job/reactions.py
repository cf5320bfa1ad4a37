"""``reactions.jsonl``: the names of everything that reactions dropped, kept or renamed, one per
line. ``rejects.jsonl``: the records at which steps failed, if the spec keeps them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from dsort.job.extraction import Extraction
from dsort.job.job import Job
from dsort.results.layout import reactions_name, rejects_name, staged_prefix
from dsort.scratch.logs import lines_file, reaction_line
from dsort.scratch.requests import LineFiles, LinesOf
from dsort.storage.bucket import ReadObject
from dsort.storage.small_objects import give_name, read_blocks, stage

BLOCK_BYTES = 4 << 20
LINES_AT_ONCE = 10_000

Place = tuple[str, str, int]
"""(node, file in it, its size in bytes)"""


def store_reactions(
    job: Job, extraction: Extraction, duplicates: Sequence[tuple[str, int, str]]
) -> None:
    """Store both files, if there are lines for them. ``duplicates``: (search, part, node) of each
    part of a search that found duplicates. Does nothing in a dry run."""
    if not job.attempt.has_begun:
        return
    shards = {shard: facts.node for shard, facts in extraction.done.items()}
    places = [
        *_places(job, "index", sorted(shards.items())),
        *(
            place
            for search in dict.fromkeys(search for search, _, _ in duplicates)
            for place in _places(
                job,
                search,
                sorted((part, node) for name, part, node in duplicates if name == search),
            )
        ),
    ]
    counts = {kind: count for kind, count, _ in job.found.resolved.tally}
    own = list(_own_lines(job.found.resolved.named, counts))
    job.outcome.reactions_file = _store(job, "reactions", reactions_name(job.job_id), own, places)
    rejected = _places(job, "rejects", sorted(shards.items()))
    job.outcome.rejects_file = _store(job, "rejects", rejects_name(job.job_id), [], [*rejected])


def _store(job: Job, what: str, name: str, own: Sequence[bytes], places: Sequence[Place]) -> str:
    """Store the lines of a file as ``name``, which is returned; "" if there are no lines."""
    size_bytes = sum(map(len, own)) + sum(size for *_, size in places)
    if not size_bytes:
        return ""
    bucket, token = job.buckets.outputs, f"{staged_prefix(job.job_id)}{what}"
    blocks = _blocks(job, own, places)
    give_name(bucket, stage(bucket, token, name, size_bytes, blocks, replaces=True))
    return name


def append_reactions(job: Job, lines: Sequence[bytes]) -> None:
    """Append ``lines`` to the stored lines. Does nothing in a dry run."""
    if not job.attempt.has_begun or not lines:
        return
    bucket, name = job.buckets.outputs, reactions_name(job.job_id)
    token = f"{staged_prefix(job.job_id)}more-reactions"
    data, before = b"".join(lines), list[ReadObject]()
    with contextlib.ExitStack() as stack:
        if job.outcome.reactions_file:
            before.append(stack.enter_context(bucket.open(name)))
        size_bytes = len(data) + sum(each.info.size_bytes for each in before)
        pieces = chain(*map(read_blocks, before), [data])
        staged = stage(bucket, token, name, size_bytes, pieces, replaces=True)
    give_name(bucket, staged)
    job.outcome.reactions_file = name


def _places(job: Job, stage: str, nodes: Sequence[tuple[int, str]]) -> Iterator[Place]:
    """The existing files of ``stage`` for the numbers in ``nodes``, in that order."""
    sizes: dict[str, Mapping[int, int]] = {}
    for number, node in nodes:
        if node not in sizes:
            sizes[node] = job.runtime.ask(node, LineFiles(stage))
        if size_bytes := sizes[node].get(number, 0):
            yield node, lines_file(stage, number), size_bytes


# Workers write the lines beside the index. Once there is a plan, these lines are put together,
# block by block: first the lines from before the first shard was read, then the lines of each shard
# in order, then those of duplicate keys by the hash of the key. This order does not depend on
# workers, memory or attempts.
def _blocks(job: Job, own: Sequence[bytes], places: Sequence[Place]) -> Iterator[bytes]:
    """The whole file in blocks of about ``BLOCK_BYTES`` at most; small files share blocks."""
    yield from own
    asked: list[tuple[str, int, int]] = []  # file, from byte, bytes
    room, asked_node = BLOCK_BYTES, ""
    for node, file, size_bytes in places:
        at = 0
        while at < size_bytes:
            if asked and (node != asked_node or not room):
                yield job.runtime.ask(asked_node, LinesOf(tuple(asked)))
                asked, room = [], BLOCK_BYTES
            length = min(size_bytes - at, room)
            asked.append((file, at, length))
            asked_node, at, room = node, at + length, room - length
    if asked:
        yield job.runtime.ask(asked_node, LinesOf(tuple(asked)))


def _own_lines(named: Mapping[str, Sequence[str]], counts: Mapping[str, int]) -> Iterator[bytes]:
    """Yield the lines of names that were found before any shard was read, in blocks. For each kind,
    one line has the number of further names, which resolve did not keep."""
    for kind in sorted(named):
        names = named[kind]
        for at in range(0, len(names), LINES_AT_ONCE):
            yield b"".join(
                reaction_line(kind, name=name) for name in names[at : at + LINES_AT_ONCE]
            )
        if counts.get(kind, 0) > len(names):
            yield reaction_line(kind, count=counts[kind] - len(names))
