"""The progress of a job over time: samples of its phases, for the manifest and the job's page."""

from __future__ import annotations

from typing import Final, NamedTuple

from msgspec import Struct, field

MOVING_PHASES: Final = frozenset({"extract", "create"})

TIMELINE_SAMPLES_MAX: Final = 240
STEP_S_MIN: Final = 0.1


class Sample(NamedTuple):
    """One moment. ``elapsed_s``: since the job began; ``bytes_done``: of this phase so far;
    ``bytes_per_s``: since the sample before it, 0 where a phase begins."""

    elapsed_s: float
    phase: str
    bytes_done: int
    bytes_per_s: float


class _Point(NamedTuple):
    elapsed_s: float
    phase: str
    bytes_done: int
    border: bool  # of a phase: kept as long as there is room


def _point(elapsed_s: float, phase: str, bytes_done: int, *, border: bool) -> _Point:
    return _Point(elapsed_s, phase, bytes_done if phase in MOVING_PHASES else 0, border)


class Timeline(Struct):
    """Samples at least ``step_s`` apart, and the begin and end of each phase. If there are too
    many, every second one is dropped, and the step doubles. Times do not decrease."""

    samples_max: int = TIMELINE_SAMPLES_MAX
    step_s: float = STEP_S_MIN
    _points: list[_Point] = field(default_factory=list)
    _latest: _Point | None = None

    def begin(self, phase: str, elapsed_s: float) -> None:
        """Add the begin of a phase."""
        self._flush()
        self._keep(_Point(elapsed_s, phase, 0, border=True))

    def note(self, phase: str, elapsed_s: float, bytes_done: int) -> None:
        """Add progress of a phase that began."""
        point = _point(elapsed_s, phase, bytes_done, border=False)
        if elapsed_s - self._points[-1].elapsed_s < self.step_s:
            self._latest = point
        else:
            self._keep(point)

    def end(self, phase: str, elapsed_s: float, bytes_done: int) -> None:
        """Add the end of a phase that began."""
        before = self._points[-1]
        if not before.border and elapsed_s - before.elapsed_s < self.step_s:
            self._points.pop()  # too close to give a rate
        self._keep(_point(elapsed_s, phase, bytes_done, border=True))

    def samples(self) -> tuple[Sample, ...]:
        """The samples, at most ``samples_max``, in order of time."""
        points = self._points
        if self._latest is not None and self._latest.elapsed_s > points[-1].elapsed_s:
            points = [*points, self._latest]
        samples: list[Sample] = []
        before: _Point | None = None
        for point in points:
            rate = 0.0
            if before is not None and before.phase == point.phase:
                seconds = point.elapsed_s - before.elapsed_s
                rate = (point.bytes_done - before.bytes_done) / seconds if seconds > 0 else 0.0
            samples.append(
                Sample(round(point.elapsed_s, 3), point.phase, point.bytes_done, round(rate, 1))
            )
            before = point
        return tuple(samples)

    def _flush(self) -> None:
        """Keep the last progress of a phase that was left without its end, in place of that end."""
        if self._latest is not None and self._latest.elapsed_s > self._points[-1].elapsed_s:
            self._keep(self._latest)

    def _keep(self, point: _Point) -> None:
        self._latest = None
        self._points.append(point)
        if len(self._points) < self.samples_max:
            return
        self.step_s *= 2
        last = len(self._points) - 1
        thinned = [p for at, p in enumerate(self._points) if p.border or at == last or at % 2]
        if len(thinned) > self.samples_max * 3 // 4:
            thinned = self._points[:-1:2] + self._points[-1:]
        self._points = thinned
