"""The publisher: gives staged output shards of an object store their names, many at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

from dsort.storage.bucket import Bucket
from dsort.storage.staging import give_name
from dsort.workers.tasks import PublishDone, PublishTask

AT_ONCE_MAX = 16
"""Each is a request that a store takes 50 to 200 ms for."""


def publish_all(task: PublishTask, outputs: Bucket) -> PublishDone:
    """Publish each, tried again by its bucket; done once more, it changes nothing."""

    with ThreadPoolExecutor(AT_ONCE_MAX) as threads:
        for _ in threads.map(partial(give_name, outputs), task.objects):
            pass
    return PublishDone(len(task.objects))
