"""The service without HTTP: database, queue, dispatcher, schedules and limits in one object."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final

from fastapi import APIRouter
from starlette.types import Scope

from dsort.closing import ClosesOnExit
from dsort.service.api.metrics import Metrics
from dsort.service.change_feed import ChangeFeed
from dsort.service.config import ServiceConfig
from dsort.service.database.engine import Database, open_database
from dsort.service.hosting.dispatcher import Dispatcher
from dsort.service.hosting.notifier import NoticeStore, Notifier
from dsort.service.jobs.rows import EventRow
from dsort.service.jobs.states import ENDED
from dsort.service.jobs.store import JobStore
from dsort.service.jobs.submit import Submitter
from dsort.service.objects.places import Listings
from dsort.service.objects.processes import ShardProcesses
from dsort.service.schedules.create import JobMaker
from dsort.service.schedules.fire import ScheduleKeeper
from dsort.service.schedules.store import ScheduleStore
from dsort.service.security.audit import Audit
from dsort.service.security.limits import RequestLimits
from dsort.service.security.tokens import ANYONE, Identity, TokenStore
from dsort.spec.transform import Lookup


class Guest:
    """A second API for the same jobs and buckets, beside the service's own API. This base class has
    no routes."""

    shard_module = "dsort.service.objects.shard_main"
    """The program that looks into shards."""

    def transforms(self, database: Database) -> Lookup | None:
        """Finds the transforms that specs name; None: the service stores no transforms."""
        return None

    def routers(self, service: Service) -> Sequence[APIRouter]:
        """The routes of the second API."""
        return ()

    def own_id(self, job_id: str) -> str:
        """The id of a job in this service. ``job_id``: this id, or the guest's id for the job."""
        return job_id

    def reads_itself(self, path: str) -> bool:
        """Whether the route of ``path`` reads the body itself, after the check of the token."""
        return False

    def stored_max(self, scope: Scope, config: ServiceConfig) -> int | None:
        """The longest body, in bytes, of a request whose body is stored as it comes; None for all
        other requests."""
        return None


NO_GUEST: Final = Guest()


class Service(ClosesOnExit):
    """All parts of one replica. ``start`` begins to run jobs and to watch the clock; ``close`` ends
    both, but not the jobs that run."""

    def __init__(self, config: ServiceConfig, guest: Guest = NO_GUEST) -> None:
        with contextlib.ExitStack() as stack:
            self.config = config
            self.guest = guest
            self.database: Database = stack.enter_context(open_database(config.database_url))
            self.store = JobStore(self.database, max_queued_per_owner=config.queued_per_owner_max)
            self.transforms = guest.transforms(self.database)
            self.submitter = Submitter(config, self.store, self.transforms)
            self.shards = stack.enter_context(ShardProcesses(config, guest.shard_module))
            self.listings = Listings()
            self.tokens = TokenStore(self.database)
            self.audit = Audit(self.database)
            self.limits = RequestLimits(config.requests_per_minute_max)
            self.metrics = Metrics(self.store, replica=config.replica)
            self.feed = stack.enter_context(
                ChangeFeed(
                    self.store,
                    trails=self.database.dialect == "postgresql",
                    listener=self._on_event,
                )
            )
            self.dispatcher = Dispatcher(config, self.database)
            maker = JobMaker(self.submitter, self.identity_of)
            self.schedules = ScheduleStore(self.database, maker)
            self.notifier = Notifier(
                NoticeStore(self.database),
                commands=dict(config.run.settings.commands),
                policy=config.webhook_policy,
            )
            self.keeper = ScheduleKeeper(self.schedules, on_submitted=self.dispatcher.wake)
            self._ending = stack.pop_all()

    def start(self) -> None:
        """Start this replica's threads."""
        self.shards.remove_left()
        # The threads end in the reverse order: the dispatcher ends after the threads that give it
        # jobs.
        self.feed.start()
        self.dispatcher.start()
        self._ending.callback(self.dispatcher.close)
        self.keeper.start()
        self._ending.callback(self.keeper.close)
        self.notifier.start()
        self._ending.callback(self.notifier.close)

    def close(self) -> None:
        """End this replica's threads. Jobs run on, and the next service finds them again."""
        self._ending.close()

    def _on_event(self, event: EventRow) -> None:
        if event.kind == "state" and event.data.get("state") in ENDED:
            self.notifier.wake()
            self.keeper.wake()  # the next run of a schedule may have waited for this job
        if self.dispatcher.hosts(event.job_id):
            self.metrics.on_event(event.job_id, event.kind, event.data)

    def identity_of(self, owner: str) -> Identity | None:
        """The present rights of the owner of a schedule; None if the token no longer exists."""
        return ANYONE if self.config.no_auth else self.tokens.find(owner)
