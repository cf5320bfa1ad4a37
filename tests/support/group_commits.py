"""Pieces of work that are certain to be committed in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from sqlalchemy import Connection

from dsort.service.database.group_commit import GroupCommit
from tests.support.service_process import await_that

__all__ = ["run_together"]


def run_together(
    commits: GroupCommit, works: Sequence[Callable[[Connection], object]]
) -> list[BaseException | None]:
    """What each of ``works`` ended with, None where it was told that it is done. They are put into
    one transaction, in this order."""
    with ThreadPoolExecutor(len(works)) as threads:
        with commits._turn:
            futures = []
            for count, work in enumerate(works, start=1):
                futures.append(threads.submit(commits.run, work))
                await_that(lambda count=count: len(commits._waiting) == count)
        return [future.exception() for future in futures]
