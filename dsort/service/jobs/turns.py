"""Owners take turns: the order of queued jobs, and the place of each job in the queue.

The highest priority comes first; at equal priority the owner with the fewest running jobs, then the
owner whose last start is the longest ago, then the job that was submitted first. So if one owner
puts a thousand jobs into the queue, others wait for at most one of them at a time. Turns are
numbers, not times: clocks of replicas differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    case,
    func,
    insert,
    literal,
    select,
    update,
)

from dsort.service.database.tables import jobs, turns

__all__ = ["fair_order", "note_turn", "queue_places"]


def fair_order(running_owners: Iterable[str]) -> Sequence[ColumnElement[int]]:
    """The sort keys of queued jobs; ``running_owners`` has the owner of each running job. For a
    query with :func:`~sqlalchemy.outerjoin` to ``turns``."""
    return (jobs.c.priority.desc(), _running(running_owners), _last_turn(), jobs.c.number)


def note_turn(connection: Connection, owner: str) -> None:
    """Record that a job of ``owner`` has begun. Only for a caller that alone decides which jobs
    begin."""
    turn = select(func.coalesce(func.max(turns.c.turn), 0) + 1).scalar_subquery()
    changed = connection.execute(update(turns).where(turns.c.owner == owner).values(turn=turn))
    if not changed.rowcount:
        connection.execute(insert(turns).values(owner=owner, turn=turn))


def queue_places(running_owners: Iterable[str]) -> Select[tuple[int, int]]:
    """(number, place from 1) of all queued jobs, in the order in which they start if all jobs take
    equally long."""
    own = (jobs.c.priority, jobs.c.owner)
    nth = func.row_number().over(partition_by=own, order_by=jobs.c.number)
    first = func.min(jobs.c.number).over(partition_by=own)  # of owners who have had no turn
    queued = (
        select(
            jobs.c.number,
            jobs.c.priority,
            nth.label("nth"),
            _running(running_owners).label("running"),
            _last_turn().label("turn"),
            first.label("first"),
        )
        .select_from(jobs.outerjoin(turns, turns.c.owner == jobs.c.owner))
        .where(jobs.c.state == "queued")
        .subquery()
    )
    order = (
        queued.c.priority.desc(),
        queued.c.nth,
        queued.c.running,
        queued.c.turn,
        queued.c.first,
    )
    return select(queued.c.number, func.row_number().over(order_by=order).label("place"))


def _running(running_owners: Iterable[str]) -> ColumnElement[int]:
    counts = Counter(running_owners)
    if not counts:
        return literal(0)
    return case(dict(counts), value=jobs.c.owner, else_=0)


def _last_turn() -> ColumnElement[int]:
    return func.coalesce(turns.c.turn, 0)
