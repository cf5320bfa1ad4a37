"""What is known of a running job. It changes only in :meth:`JobState.apply`."""

from __future__ import annotations

from dataclasses import dataclass, field

from dsort.data.tally import Tally
from dsort.errors import InvariantError

__all__ = ["PHASES", "Advanced", "JobState", "Noted", "PhaseBegan", "PhaseEnded", "PhaseTotals"]

PHASES = ("resolve", "extract", "plan", "create", "commit")


@dataclass(frozen=True, slots=True)
class PhaseBegan:
    """A phase begins; totals of 0 are not known."""

    phase: str
    at_s: float
    shards_total: int = 0
    bytes_total: int = 0


@dataclass(frozen=True, slots=True)
class Advanced:
    """One more piece of the current phase is done."""

    shards: int = 0
    records: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Noted:
    """Something was dropped, kept, renamed or odd, and is counted."""

    tally: Tally


@dataclass(frozen=True, slots=True)
class PhaseEnded:
    """The current phase is over."""

    at_s: float


@dataclass(slots=True)
class PhaseTotals:
    """One phase, so far. Times in seconds of the coordinator's clock."""

    began_s: float
    shards_total: int
    bytes_total: int
    shards: int = 0
    records: int = 0
    bytes: int = 0
    ended_s: float | None = None

    @property
    def seconds(self) -> float:
        """How long it took; 0 while it runs."""
        return 0.0 if self.ended_s is None else self.ended_s - self.began_s


@dataclass(slots=True)
class JobState:
    """The phases of a job in their order, each at most once (a phase may be entered again to go
    on: a survey and the extraction after it are both ``extract``)."""

    phases: dict[str, PhaseTotals] = field(default_factory=dict)
    phase: str | None = None
    tally: Tally = field(default_factory=Tally)

    def apply(self, event: PhaseBegan | Advanced | Noted | PhaseEnded) -> None:
        """Take in one event; ``InvariantError`` if it cannot come now."""
        match event:
            case PhaseBegan():
                self._begin(event)
            case Advanced():
                current = self._current()
                current.shards += event.shards
                current.records += event.records
                current.bytes += event.bytes
            case Noted():
                self.tally.merge(event.tally)
            case PhaseEnded():
                self._current().ended_s = event.at_s
                self.phase = None

    def seconds(self) -> dict[str, float]:
        """Seconds of each phase that is over, rounded to microseconds."""
        return {name: round(totals.seconds, 6) for name, totals in self.phases.items()}

    def _begin(self, event: PhaseBegan) -> None:
        started = [PHASES.index(name) for name in self.phases]
        if self.phase is not None or PHASES.index(event.phase) <= max(started, default=-1):
            raise InvariantError(f"phase {event.phase} cannot begin after {list(self.phases)}")
        self.phase = event.phase
        self.phases[event.phase] = PhaseTotals(event.at_s, event.shards_total, event.bytes_total)

    def _current(self) -> PhaseTotals:
        if self.phase is None:
            raise InvariantError("no phase is running")
        return self.phases[self.phase]
