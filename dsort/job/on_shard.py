"""``on_shard``: a program that is run for each output shard, once the manifest is written.

Progress is stored in ``on_shard.json`` of the job's directory: the program ran for the first
``done`` shards, in output order, and for those in ``more``. The file is written after each shard,
but not more than once a second; so after a death of dsort itself, the program runs once more for
shards that were done in that second, and for those that were under way. Else it runs once for each
shard.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Final

from msgspec import Struct

from dsort.data.json_values import Count, json_bytes
from dsort.errors import InputError, ObjectNotFoundError, ShardCommandError
from dsort.job.layout import on_shard_name
from dsort.job.manifest import ManifestOutput
from dsort.job.programs import Command
from dsort.spec.outputs import OnShard
from dsort.stop_flag import StopFlag
from dsort.storage.bucket import Bucket
from dsort.storage.small_objects import parse_as, read_small

NOTED_EVERY_S: Final = 1.0
NOTED_BYTES_MAX: Final = 1 << 20
LOOKED_AT_S: Final = 0.1


class _Noted(Struct):
    """The shards for which the program has been run: the first ``done``, and ``more``."""

    done: Count
    more: set[int]


def shards_left(bucket: Bucket, job_id: str, shards: int) -> list[int]:
    """The ordinals of those of ``shards`` shards for which the program has not been run."""
    name = on_shard_name(job_id)
    try:
        data = read_small(bucket, name, bytes_max=NOTED_BYTES_MAX)
    except ObjectNotFoundError:
        return [*range(shards)]
    noted = parse_as(data, f"{name} in {bucket.uri}", _Noted)
    return [ordinal for ordinal in range(noted.done, shards) if ordinal not in noted.more]


def run_on_shards(
    wanted: OnShard,
    job_id: str,
    bucket: Bucket,
    outputs: Sequence[ManifestOutput],
    *,
    stop: StopFlag,
    warn: Callable[[str], None],
) -> None:
    """Run the program for all shards for which it has not been run. ``ShardCommandError`` at the
    first failure, unless failures are warnings; ``JobStoppedError``."""
    left = shards_left(bucket, job_id, len(outputs))
    if not left:
        return
    runs = _Runs(wanted, job_id, bucket, outputs, set(range(len(outputs))) - set(left))
    with ThreadPoolExecutor(wanted.at_once) as threads:
        try:
            runs.do(left, threads, stop, warn)
        finally:
            runs.end()


class _Runs:
    """The runs of one program, for some shards of a result."""

    def __init__(
        self,
        wanted: OnShard,
        job_id: str,
        bucket: Bucket,
        outputs: Sequence[ManifestOutput],
        done: set[int],
    ) -> None:
        self._wanted, self._job_id, self._bucket = wanted, job_id, bucket
        self._outputs, self._done = outputs, done
        self._first = 0  # the program ran for all shards before this one
        self._noted_s = 0.0
        self._running: dict[int, Command] = {}
        self._ended = False

    def do(
        self,
        left: Sequence[int],
        threads: ThreadPoolExecutor,
        stop: StopFlag,
        warn: Callable[[str], None],
    ) -> None:
        waiting, under_way = iter(left), dict[Future[str], int]()
        failure = ""
        try:
            while True:
                while len(under_way) < self._wanted.at_once and not failure:
                    ordinal = next(waiting, None)
                    if ordinal is None:
                        break
                    under_way[threads.submit(self._run, ordinal)] = ordinal
                if not under_way:
                    break
                ended, _ = wait(under_way, LOOKED_AT_S, FIRST_COMPLETED)
                stop.raise_if_requested()
                for each in ended:
                    ordinal, why = under_way.pop(each), each.result()
                    if why and self._wanted.on_error == "warn":
                        warn(f"on_shard: {self._words(ordinal, why)}")
                    elif why:
                        failure = failure or self._words(ordinal, why)
                        continue
                    self._note(ordinal)
        finally:
            self._write()
        if failure:
            raise ShardCommandError(
                f"{failure}; the result is committed, and on_shard is done for {len(self._done):,} "
                f"of {len(self._outputs):,} shards",
                hint=f"`dsort resume {self._job_id} --run-code` runs it for the others",
            )

    def end(self) -> None:
        """End the running programs."""
        self._ended = True
        for command in list(self._running.values()):
            command.end()

    def _run(self, ordinal: int) -> str:
        """Run the program for a shard; returns why it failed, "" on success."""
        shard = self._outputs[ordinal]
        local = self._bucket.local_path(shard.name)
        path = str(local) if local is not None else f"{self._bucket.uri}/{shard.name}"
        stands_for = {"{shard}": shard.name, "{path}": path}
        words = [_filled(word, stands_for) for word in self._wanted.exec]
        variables = {
            "DSORT_JOB_ID": self._job_id,
            "DSORT_SHARD": shard.name,
            "DSORT_PATH": path,
            "DSORT_RECORDS": str(shard.records),
            "DSORT_FILE_BYTES": str(shard.file_bytes),
            "DSORT_XXH3": shard.xxh3,
        }
        try:
            command = Command(words, is_source=False, variables=variables)
        except InputError as error:
            return error.message
        self._running[ordinal] = command
        if self._ended:
            command.end()
        why = command.wait(self._wanted.timeout)
        del self._running[ordinal]
        return why and f"the program {command.program} {why}"

    def _words(self, ordinal: int, why: str) -> str:
        return f"shard {self._outputs[ordinal].name}: {why}"

    def _note(self, ordinal: int) -> None:
        self._done.add(ordinal)
        if time.monotonic() - self._noted_s >= NOTED_EVERY_S:
            self._write()

    def _write(self) -> None:
        while self._first in self._done:
            self._first += 1
        more = sorted(ordinal for ordinal in self._done if ordinal > self._first)
        content = {"done": self._first, "more": more}
        self._bucket.write(on_shard_name(self._job_id), json_bytes(content))
        self._noted_s = time.monotonic()


def _filled(word: str, stands_for: dict[str, str]) -> str:
    """``word`` with its fields replaced. Values are not searched for fields: names may have
    braces."""
    for field, value in stands_for.items():
        if field in word:
            before, _, after = word.partition(field)
            return f"{_filled(before, stands_for)}{value}{_filled(after, stands_for)}"
    return word
