"""Results whose shards later jobs have replaced: such a result is gone, but for its manifest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dsort.errors import ObjectNotFoundError
from dsort.job.commits import commit_of, commits, manifests_in
from dsort.job.known_outputs import listed_outputs
from dsort.job.layout import manifest_name
from dsort.job.manifest import Manifest
from dsort.storage.bucket import Bucket
from dsort.storage.output_buckets import place_of
from dsort.storage.small_objects import read_small

MANIFESTS_READ_MAX: Final = 100
MANIFEST_BYTES_MAX: Final = 256 << 20


@dataclass(frozen=True, slots=True)
class Replacement:
    """The job that committed a result under names of another one. ``names``: of the shards of the
    other result that are the later job's now, sorted; ``total``: how many that result had."""

    job_id: str
    names: tuple[str, ...]
    total: int

    @property
    def words(self) -> str:
        """What happened, behind the result."""
        which = "all" if len(self.names) == self.total else f"{len(self.names):,} of"
        return f"{which} {self.total:,} output shards were replaced by job {self.job_id}"


def later_results(bucket: Bucket, created: str, job_id: str) -> list[str]:
    """The jobs whose results were committed to ``bucket`` after that of ``job_id``, which was
    ``created`` then; the last one first."""
    own = commit_of(created, job_id)
    others = [each for each in manifests_in(bucket) if each != job_id]
    return [each.job_id for each in commits(bucket, others) if each > own]


def replacements(bucket: Bucket, manifest: Manifest) -> list[Replacement]:
    """The jobs that replaced shards of the result of ``manifest``, which is in ``bucket``; those
    that committed last come first. Only shards in the bucket of the manifest are looked at, and no
    more than the newest manifests."""
    later = later_results(bucket, manifest.created, manifest.job_id)
    left = {
        shard.name: (shard.file_bytes, shard.xxh3)
        for shard in manifest.outputs
        if not place_of(shard.name)[0]
    }
    found: list[Replacement] = []
    for job_id in later[:MANIFESTS_READ_MAX]:
        try:
            data = read_small(bucket, manifest_name(job_id), bytes_max=MANIFEST_BYTES_MAX)
        except ObjectNotFoundError:
            continue
        rows = [row for row in listed_outputs(data) if row[0] in left]
        changed = {name: size for name, size, xxh3 in rows if left[name] != (size, xxh3)}
        there = bucket.stat_many(changed)
        # Of another size, a shard is another's, or the earlier one again.
        names = [name for name, info in there.items() if info.size_bytes == changed[name]]
        if names:
            found.append(Replacement(job_id, tuple(sorted(names)), len(manifest.outputs)))
        for name, *_ in rows:
            left.pop(name, None)
    return found
